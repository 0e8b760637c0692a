"""Reading plain text: encodings and whitespace."""

from __future__ import annotations

import codecs
from pathlib import Path

from workbench.core.checks import check_option
from workbench.core.errors import DataError, InputError

__all__ = ["WHITESPACE", "clean_text", "decode", "read_text"]

WHITESPACE = ("collapse", "keep")

# UTF-32 before UTF-16: the mark of the one begins with that of the other.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def decode(raw: bytes, *, encoding: str | None = None, where: str = "the file") -> str:
    """Bytes as text: by their byte-order mark, else as UTF-8, or as the encoding that is named.

    The mark itself is dropped. Nothing is guessed and nothing is replaced.

    Raises
    ------
    DataError : the bytes are not text in that encoding; the message gives the byte and the mend.
    InputError : Python knows no such encoding.
    """
    mark, found = next(
        ((mark, name) for mark, name in _MARKS if raw.startswith(mark)), (b"", "utf-8")
    )
    chosen = encoding or found
    try:
        codecs.lookup(chosen)
    except LookupError:
        raise InputError(
            f"encoding={encoding!r} is not known; 'utf-8', 'utf-16' and 'cp1252' are common."
        ) from None
    same_family = codecs.lookup(chosen).name.startswith(found.split("-le")[0].split("-be")[0])
    body = raw[len(mark) :] if mark and same_family else raw
    if mark and same_family:
        chosen = found
    try:
        text = body.decode(chosen)
    except UnicodeDecodeError as error:
        place = error.start + len(raw) - len(body)
        byte = raw[place : place + 1].hex()
        raise DataError(
            f"{where}: byte {place} (0x{byte}) is not {chosen.upper()} text. Name the file's "
            "encoding, for example encoding='cp1252' for older Windows files or 'utf-16', or save "
            "it as UTF-8."
        ) from None
    if "\x00" in text:
        raise DataError(
            f"{where}: character {text.index(chr(0))} is a zero byte, so this is no "
            f"{chosen.upper()} text; it may be UTF-16 without a byte-order mark: pass "
            "encoding='utf-16-le'."
        )
    return text


def clean_text(text: str, whitespace: str = "collapse", *, where: str = "the text") -> str:
    """Text as a model reads it.

    Parameters
    ----------
    text : the text of a file.
    whitespace : "collapse": every run of whitespace (line ends and paragraph breaks as well)
        becomes one space, so that a file broken into lines reads as it was told;
        "keep": line ends become line feeds, everything else stays. Both strip both ends.
    where : the file, for messages.

    Raises
    ------
    DataError : nothing but whitespace.
    """
    check_option("whitespace", whitespace, WHITESPACE)
    if whitespace == "collapse":
        cleaned = " ".join(text.split())
    else:
        cleaned = text.replace("\r\n", "\n").replace("\r", "\n").strip()
    if not cleaned:
        raise DataError(f"{where} is empty: it holds no character except whitespace.")
    return cleaned


def read_text(
    path: str | Path, *, encoding: str | None = None, whitespace: str = "collapse"
) -> str:
    """The text of a file, decoded (`decode`) and cleaned (`clean_text`)."""
    raw = Path(path).read_bytes()
    text = decode(raw, encoding=encoding, where=str(path))
    return clean_text(text, whitespace, where=str(path))
