"""What a compiler will make of a model on a target: pure functions on the graph, the network and the target."""
