"""The hooks that a stage calls: their listeners, and checks of the methods that listen."""
