"""qbench: give it a network, calibration data and a product requirement; it finds, proves and delivers a mixed-precision plan."""

__version__ = "0.1.0"
