"""What all results share: a sentence, a table, a frame, and the values that the command line writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from memviz.errors import library_needed
from memviz.headlines.headline import Headline, escape_control_chars
from memviz.ui.html.markup import Html

if TYPE_CHECKING:
    import pandas


class Result(ABC):
    """Prints as a sentence; a notebook shows its table."""

    @property
    @abstractmethod
    def headline(self) -> Headline:
        """An answer and its reason, with texts from the trace as they stand there."""

    @abstractmethod
    def as_json(self) -> dict[str, Any]:
        """Plain values, under the names that `--json` of the command line has."""

    @abstractmethod
    def columns(self) -> Mapping[str, list[Any]]:
        """Every row of the table, by column, in plain values: bytes are whole numbers."""

    def to_frame(self) -> pandas.DataFrame:
        """`columns` as a pandas frame.

        Raises:
            LibraryNeeded: pandas is not installed.
        """
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise (library_needed(error) or error) from None
        return pandas.DataFrame(dict(self.columns()))

    @abstractmethod
    def _html(self) -> Html: ...

    def __str__(self) -> str:
        return escape_control_chars(str(self.headline), keep="")

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return str(self._html())

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        bundle = {"text/plain": str(self), "text/html": self._repr_html_()}
        return {
            kind: text
            for kind, text in bundle.items()
            if (not include or kind in include) and not (exclude and kind in exclude)
        }
