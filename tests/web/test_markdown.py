"""Markdown on the page: the usual marks, and no tag of the text ever survives."""

import random
import re
import time
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest

from agent_checkpoint.web.markdown import markdown

OURS = {"h3", "h4", "h5", "h6", "p", "ol", "ul", "li", "pre", "code", "em", "strong", "span"}
OURS |= {"blockquote"}
BITS = [
    *"ab \n\t*_`#>-+|[]()<>\"'&!\\~0.",
    *(
        "```",
        "~~~",
        "**",
        "__",
        "# ",
        "- ",
        "1. ",
        "> ",
        "\n\n",
        "    ",
        "](",
        "http://x",
        "https://",
    ),
    *("<script>", "</script>", "<img src=x onerror=1>", "javascript:1", "&lt;", "&#60;", "<!--"),
    *("]]>", "<svg/onload=1>", "</pre>", "</code>", "data:text/html,", "\u202e", "\x00", "é", "漢"),
]


class Tags(HTMLParser):
    """Collects the tags of a page, and its text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.wrong: list[str] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in OURS or (attrs and (tag, attrs) != ("span", [("class", "muted")])):
            self.wrong.append(f"<{tag} {attrs}>")
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}>")

    def handle_comment(self, data: str) -> None:
        self.wrong.append(data)

    handle_decl = handle_pi = unknown_decl = handle_comment

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(text: str) -> Tags:
    found = Tags()
    found.feed(markdown(text))
    found.close()
    assert (found.wrong, found.open) == ([], []), text
    return found


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("plain <b>", "<p>plain &lt;b&gt;</p>"),
        ("two\nlines", "<p>two\nlines</p>"),
        ("one\n\ntwo", "<p>one</p><p>two</p>"),
        ("# Title #", "<h3>Title</h3>"),
        ("###### Deep", "<h6>Deep</h6>"),
        ("**bold** and *it*", "<p><strong>bold</strong> and <em>it</em></p>"),
        ("snake_case_name and _it_", "<p>snake_case_name and <em>it</em></p>"),
        ("**a `b` c**", "<p><strong>a <code>b</code> c</strong></p>"),
        ("`**no** <i>`", "<p><code>**no** &lt;i&gt;</code></p>"),
        ("2 * 3 * 4", "<p>2 * 3 * 4</p>"),
        ("- a\n- b", "<ul><li>a</li><li>b</li></ul>"),
        ("1. a\n2. b", "<ol><li>a</li><li>b</li></ol>"),
        ("- a\n  - b\n- c", "<ul><li>a</li><ul><li>b</li></ul><li>c</li></ul>"),
        ("- a\n  more", "<ul><li>a\nmore</li></ul>"),
        ("> said\n> so", "<blockquote><p>said\nso</p></blockquote>"),
        ("```html\n<b>*x*\n```\nafter", "<pre><code>&lt;b&gt;*x*</code></pre><p>after</p>"),
        ("```\nnever closed", "<pre><code>never closed</code></pre>"),
        ("| a | b |\n|---|---|", "<pre>| a | b |\n|---|---|</pre>"),
        ("[x](javascript:alert(1))", "<p>[x](javascript:alert(1))</p>"),
        ('[x](https://e.org/"a)', '<p>x <span class="muted">(https://e.org/&#34;a)</span></p>'),
        ("![x](http://e.org/a.png)", '<p>!x <span class="muted">(http://e.org/a.png)</span></p>'),
    ],
)
def test_the_usual_marks(text: str, html: str) -> None:
    assert markdown(text) == html


def test_no_tag_of_the_text_survives(request: pytest.FixtureRequest) -> None:
    chance = random.Random(1119)
    number = 200_000 if request.config.getoption("--full-faults", default=False) else 4_000
    for _ in range(number):
        parsed("".join(chance.choice(BITS) for _ in range(chance.randrange(1, 40))))


def test_no_word_of_the_text_is_lost() -> None:
    chance = random.Random(7)
    for _ in range(2_000):
        text = "".join(chance.choice(BITS[:40]) for _ in range(chance.randrange(1, 40)))
        words = re.findall("[ab0é]+", text)
        kept = re.findall("[ab0é]+", unescape(parsed(text).text))
        numbers = re.findall(r"(?:^|\n)[ \t]*(0+)[.)][ \t]", text)  # of list items
        info = re.findall(r"(?:```|~~~)[^\n]*", text)  # the language of a fence
        if not numbers and not info and "http" not in text:
            assert "".join(kept) == "".join(words), text


def test_secrets_are_masked_and_invisible_characters_are_seen() -> None:
    html = markdown("**key** `sk-ant-api03-" + "A1b2" * 20 + "`\u202e")
    assert "A1b2" not in html
    assert "\\u202e" in html


@pytest.mark.parametrize(
    "bit",
    ["*a", "**a", "`", "[", "[a](", "_a", "> ", "- ", "#", "```\n", "|", "(" * 3, "* ", "\t- "],
)
def test_time_is_linear(bit: str) -> None:
    def seconds(number: int) -> float:
        text = bit * number
        started = time.process_time()
        markdown(text)
        return time.process_time() - started

    seconds(1_000)
    assert seconds(40_000) < 20 * max(seconds(10_000), 0.01)
