"""What any dimension does with modules: forwards, plans, their own state, graphs, and parts that are elsewhere."""
