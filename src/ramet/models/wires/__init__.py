"""The wires of providers: what a model request of any program asks for, and the usage that its reply reports."""
