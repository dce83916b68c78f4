"""Renders the Markdown of messages as HTML that does nothing. Owns the tags that it may produce.

Everything of the text is escaped; tags are only those that this module adds, without attributes
from the text. A link is shown with its address and leads nowhere. Every pattern takes linear time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from markupsafe import Markup, escape

from agent_checkpoint.web.page_text import shown

_FENCE = re.compile(r" {0,3}(```|~~~)")
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*)")
_ITEM = re.compile(r"([ \t]{0,40})([-*+]|\d{1,9}[.)])[ \t]+(.*)")
_QUOTE = re.compile(r" {0,3}> ?(.*)")
_INLINE = re.compile(
    r"`(?P<code>[^`\n]+)`"
    r"|\*\*(?P<strong>[^*\n]+)\*\*"
    r"|\*(?P<em>[^*\s][^*\n]*)\*"
    r"|(?<![\w_])_(?P<em2>[^_\s][^_\n]*)_(?![\w_])"
    r"|\[(?P<words>[^\[\]\n]{1,500})\]\((?P<address>https?://[^()\s]{1,2000})\)"
)
_MAX_DEPTH = 6


class _Item(NamedTuple):
    """An item of a list."""

    indent: int
    is_ordered: bool
    text: str


def markdown(text: object) -> Markup:
    """Return a text as HTML, secrets masked and invisible characters escaped as by `shown`."""
    html: list[str] = []
    lines = shown(text).split("\n")
    at = 0
    while at < len(lines):
        at = _block(lines, at, html)
    return Markup("".join(html))  # noqa: S704 - every piece of text in it is escaped


def _block(lines: list[str], at: int, html: list[str]) -> int:
    """Render the block that begins at a line; return the line after it."""
    line = lines[at]
    fence, heading = _FENCE.match(line), _HEADING.match(line)
    if not line.strip():
        return at + 1
    if fence is not None:
        return _fenced(lines, at + 1, fence[1], html)
    if heading is not None:
        level = min(6, len(heading[1]) + 2)  # the page has its own first headings
        html.append(f"<h{level}>{_inline(heading[2].rstrip('# '))}</h{level}>")
        return at + 1
    if line.lstrip().startswith("|"):
        end = _while(lines, at, lambda other: other.lstrip().startswith("|"))
        html.append(f"<pre>{_text(lines[at:end])}</pre>")
        return end
    if _QUOTE.match(line):
        end = _while(lines, at, lambda other: _QUOTE.match(other) is not None)
        inner = [found[1] for found in map(_QUOTE.match, lines[at:end]) if found is not None]
        html.append(f"<blockquote>{_paragraph(inner)}</blockquote>")
        return end
    if _ITEM.match(line):
        return _list(lines, at, html)
    end = _while(lines, at, _is_plain)
    html.append(_paragraph(lines[at:end]))
    return end


def _while(lines: list[str], at: int, is_same: Callable[[str], bool]) -> int:
    end = at + 1
    while end < len(lines) and is_same(lines[end]):
        end += 1
    return end


def _is_plain(line: str) -> bool:
    others = (_FENCE, _HEADING, _QUOTE, _ITEM)
    is_other = line.lstrip().startswith("|") or any(form.match(line) for form in others)
    return bool(line.strip()) and not is_other


def _fenced(lines: list[str], at: int, mark: str, html: list[str]) -> int:
    end = at
    while end < len(lines) and not lines[end].strip().startswith(mark):
        end += 1
    html.append(f"<pre><code>{_text(lines[at:end])}</code></pre>")
    return end + 1


def _list(lines: list[str], at: int, html: list[str]) -> int:
    items: list[_Item] = []
    end = at
    while end < len(lines):
        found = _ITEM.match(lines[end])
        if found is not None:
            indent = len(found[1].expandtabs(4))
            items.append(_Item(indent, found[2][0].isdigit(), found[3]))
        elif items and lines[end][:1] in (" ", "\t") and _is_plain(lines[end]):
            items[-1] = items[-1]._replace(text=f"{items[-1].text}\n{lines[end].strip()}")
        else:
            break
        end += 1
    open_lists: list[_Item] = []
    for item in items:
        while len(open_lists) > 1 and item.indent < open_lists[-1].indent:
            html.append(_end(open_lists.pop()))
        is_deeper = bool(open_lists) and item.indent > open_lists[-1].indent + 1
        if not open_lists or (is_deeper and len(open_lists) < _MAX_DEPTH):
            open_lists.append(item)
            html.append("<ol>" if item.is_ordered else "<ul>")
        html.append(f"<li>{_inline(item.text)}</li>")
    while open_lists:
        html.append(_end(open_lists.pop()))
    return end


def _end(item: _Item) -> str:
    return "</ol>" if item.is_ordered else "</ul>"


def _paragraph(lines: list[str]) -> str:
    return "<p>" + _inline("\n".join(lines)) + "</p>"


def _text(lines: list[str]) -> str:
    return str(escape("\n".join(lines)))


def _inline(text: str, depth: int = 0) -> str:
    html: list[str] = []
    at = 0
    for found in _INLINE.finditer(text):
        html.append(str(escape(text[at : found.start()])))
        at = found.end()
        if found["code"] is not None:
            html.append(f"<code>{escape(found['code'])}</code>")
        elif found["words"] is not None:
            address = f'<span class="muted">({escape(found["address"])})</span>'
            html.append(f"{escape(found['words'])} {address}")
        else:
            tag = "strong" if found["strong"] is not None else "em"
            inner = found["strong"] or found["em"] or found["em2"]
            html.append(
                f"<{tag}>{_inline(inner, depth + 1) if depth < 2 else escape(inner)}</{tag}>"
            )
    html.append(str(escape(text[at:])))
    return "".join(html)
