from support.command_line import core_cli

__all__ = ["core_cli"]
