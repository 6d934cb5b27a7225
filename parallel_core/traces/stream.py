"""Reads the events of a Chrome trace one by one, without holding the file in memory.

The file is JSON as torch.profiler writes it (an object with the list `traceEvents`, or the bare list), plain or
gzipped. Errors do not end the reading as long as anything is left to read; they are reported in `notes`.
"""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

PIECE = 1 << 20
LONGEST = 8 * PIECE
"""Maximum length of a value in the file, in characters."""
NEAR_END = 1 << 16
"""How far before the end of the text read so far the end of a complete event is searched, in characters."""
_SPACE = re.compile(r"[\s,]*")
_NEXT_EVENT = re.compile(r"\}\s*,\s*(?=\{)")
_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"


@dataclass(frozen=True)
class Limits:
    """Limits on the reading of one file."""

    unpacked: int = 4 << 30
    """Bytes after decompression."""
    ratio: int = 250
    """Compression ratio beyond the first 64 MiB: a profiler's JSON compresses to a tenth or a twentieth."""
    events: int = 5_000_000
    """Events that are kept: others take no memory."""
    wasted: int = 256 << 20
    """Characters that are read in vain: after a damaged event all up to its end is read again, as it may hold others.
    Without a limit, a file made of beginnings of events takes as long as the square of its size."""


@dataclass
class EventStream:
    """Iterates over the events; afterwards `header` has the other values of the object, and `notes` the problems found.

    `on_progress` is called now and then with the number of bytes read from the file; `keeps` says which events are
    kept, and count to the limit.
    """

    file: IO[bytes]
    limits: Limits = Limits()
    on_progress: Callable[[int], None] = lambda read: None
    header: dict[str, Any] = field(default_factory=dict)
    keeps: Callable[[dict[str, Any]], bool] = lambda event: True
    notes: list[str] = field(default_factory=list)
    count: int = 0
    kept: int = 0
    damaged: int = 0

    def __post_init__(self) -> None:
        self._text, self._at, self._done = "", 0, False
        self._plain_from, self._refused, self._wasted = 0, False, 0
        self._pieces = self._unpacked()
        self._decoder = json.JSONDecoder(strict=False)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        start = self._peek()
        if start == "[":
            self._at += 1
            yield from self._events()
        elif start == "{":
            self._at += 1
            yield from self._object()
        elif start:
            self.notes.append("This is no Chrome trace: JSON begins with { or [.")
        elif not self.notes:
            self.notes.append("The file is empty.")
        if self.damaged:
            self.notes.append(f"{self.damaged} events could not be read and were left out.")

    def _object(self) -> Iterator[dict[str, Any]]:
        found = False
        while self._peek() not in ("}", ""):
            key = self._value()
            if not isinstance(key, str) or self._peek() != ":":
                self.notes.append(f"The file stops making sense after {self.count} events.")
                break
            self._at += 1
            if key == "traceEvents" and self._peek() == "[":
                self._at, found = self._at + 1, True
                yield from self._events()
            else:
                self.header[key] = self._value()
        if not found and not self.notes:
            self.notes.append("The file has no traceEvents: it is no Chrome trace.")

    def _events(self) -> Iterator[dict[str, Any]]:
        while (start := self._peek()) != "]":
            if not start:
                self._cut_off()
                return
            if many := self._several():
                self.count += len(many)
                self.kept += sum(map(self.keeps, many))
                yield from many
                continue
            event = self._value()
            if isinstance(event, dict):
                self.count += 1
                self.kept += self.keeps(event)
                yield event
            elif not self._skip(within=start == "{"):
                return
            if self.kept >= self.limits.events:
                self.notes.append(f"Only the first {self.kept} events were read.")
                self._stop()
                return
            if self._wasted > self.limits.wasted:
                self.notes.append(f"So much of it is damaged that it was not read on after event {self.count}.")
                self._stop()
                return
        self._at += 1

    def _several(self) -> list[dict[str, Any]]:
        """Decodes all complete events read so far at once, which is several times as fast as one by one.

        Returns [] where that fails: damaged events, or more than the limit.
        """
        if len(self._text) - self._at < PIECE and not self._done:
            self._more()
        ends = [match.start() for match in _NEXT_EVENT.finditer(self._text, max(self._at, len(self._text) - NEAR_END))]
        if not ends or self._at < self._plain_from:
            return []
        try:
            many = self._decoder.decode(f"[{self._text[self._at : ends[-1] + 1]}]")
        except (ValueError, RecursionError):
            many = []
        if not many or self.kept + len(many) >= self.limits.events or not all(type(one) is dict for one in many):
            self._plain_from = ends[-1]  # up to there, events are decoded one by one
            return []
        self._at = ends[-1] + 1
        return list(many)

    def _value(self) -> Any:
        """Decodes the JSON value at the current position; None, without moving, where there is no valid one."""
        self._peek()
        while True:
            if len(self._text) - self._at < PIECE and not self._done:
                self._more()
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except RecursionError:
                self._wasted += PIECE  # about as long as so many plain characters take
                return None  # no profiler nests so deeply
            except ValueError as error:
                if self._done or len(self._text) - self._at > LONGEST:
                    self._wasted += self._read_until(error) - self._at
                    return None
                self._more()
            else:
                self._at = end
                return value

    def _read_until(self, error: ValueError) -> int:
        """Where in the text the decoder gave up: for a string without an end the error has its beginning."""
        if isinstance(error, json.JSONDecodeError) and not error.msg.startswith("Unterminated string"):
            return error.pos
        return len(self._text)

    def _skip(self, within: bool) -> bool:
        """Moves to where the next event may begin; False where there is none. `within`: an event had begun at this
        position."""
        found = _NEXT_EVENT.search(self._text, self._at)
        if found is None:
            if self.count or within or not self._done:
                self._cut_off()
            self._stop()
            return False
        self.damaged, self._at = self.damaged + 1, found.end()
        return True

    def _cut_off(self) -> None:
        """Adds a note that the file is truncated, unless it was not read to its end because of a limit."""
        if self._refused:
            return
        if self.count:
            self.notes.append(f"The file is cut off after event {self.count}; what came before is shown.")
        else:
            self.notes.append("The file is cut off or damaged within its first event: none of it can be read.")

    def _peek(self) -> str:
        """Returns the next character that is neither space nor comma; '' at the end."""
        while True:
            matched = _SPACE.match(self._text, self._at)
            self._at = matched.end() if matched else self._at
            if self._at < len(self._text) or self._done:
                return self._text[self._at : self._at + 1]
            self._more()

    def _more(self) -> None:
        piece = next(self._pieces, None)
        if piece is None:
            self._done = True
        else:
            self._plain_from -= self._at
            self._text, self._at = self._text[self._at :] + piece, 0

    def _stop(self) -> None:
        self._text, self._at, self._done = "", 0, True

    def _unpacked(self) -> Iterator[str]:
        """Yields the text of the file, piece by piece."""
        decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        for data in self._data():
            yield decode(data)
        yield decode(b"", True)

    def _data(self) -> Iterator[bytes]:
        packed = unpacked = 0
        zipped: Any = None
        while piece := self.file.read(PIECE):
            if not packed and piece.startswith(_ZIP):
                self.notes.append("This is a zip archive; unpack it and upload the traces in it.")
                return
            if not packed and piece.startswith(_GZIP):
                zipped = zlib.decompressobj(wbits=31)
            packed += len(piece)
            self.on_progress(packed)
            for data in self._inflate(zipped, piece) if zipped else (piece,):
                unpacked += len(data)
                if self._too_much(packed, unpacked):
                    return
                yield data
            if zipped and zipped.eof:
                return
        if zipped and not zipped.eof:
            self.notes.append("The gzip file is cut off; only what comes before could be unpacked.")

    def _inflate(self, zipped: Any, piece: bytes) -> Iterator[bytes]:
        """Yields at most PIECE bytes at a time, however highly compressed the input is."""
        try:
            while piece and not zipped.eof:
                if data := zipped.decompress(piece, PIECE):
                    yield data
                elif not zipped.unconsumed_tail:
                    return
                piece = zipped.unconsumed_tail or b""
        except zlib.error as error:
            self.notes.append(f"The gzip file is damaged ({error}); only what comes before could be unpacked.")

    def _too_much(self, packed: int, unpacked: int) -> bool:
        if unpacked > self.limits.unpacked:
            self.notes.append(f"It unpacks to more than {self.limits.unpacked >> 20} MiB; only these were read.")
        elif unpacked > 64 * PIECE and unpacked > self.limits.ratio * packed:
            self.notes.append(
                f"It unpacks to more than {self.limits.ratio} times its size: no trace does. It was not read on."
            )
        else:
            return False
        self._refused = True
        return True
