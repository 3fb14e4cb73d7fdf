"""Progress bars: core's, or one of the columns that a subclass names."""

from __future__ import annotations

from typing import Any

from core.callbacks import RichProgressBar as CoreRichProgressBar
from core_training.monitors.columns_progress_bar import ColumnsProgressBar


class RichProgressBarTheme:
    """Colors of a bar; taken for Lightning's sake, since core's bar has one look."""

    def __init__(self, **colors: Any) -> None:
        self.__dict__.update(colors)


class RichProgressBar(CoreRichProgressBar):
    """The progress bar of core; see `core.callbacks.RichProgressBar`. With columns of a subclass,
    one of rich.

    Args:
        refresh_rate: 0 for none.
        theme: taken for Lightning's sake.
        console_kwargs: of rich's Console.
    """

    configure_columns = ColumnsProgressBar.configure_columns

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "configure_columns" in vars(cls) and not issubclass(cls, ColumnsProgressBar):
            cls.__bases__ = (ColumnsProgressBar, *cls.__bases__)

    def __init__(
        self,
        refresh_rate: int = 1,
        leave: bool = False,
        theme: RichProgressBarTheme | None = None,
        console_kwargs: dict[str, Any] | None = None,
    ) -> None:
        from rich.console import Console

        console = None
        if console_kwargs:
            console = Console(**console_kwargs)
        super().__init__(leave=leave, console=console)
        if refresh_rate == 0:
            self.disable()
