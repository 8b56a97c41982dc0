"""Where a toolchain runs each operator: what a rule sees of it, what the rules of a target say, and the parts of the network that leave the NPU."""
