"""What is left out of a snapshot: as git has it, and fast whatever the patterns are."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agent_checkpoint import InvalidInputError
from agent_checkpoint.workspace.ignore.rules import CHECKPOINTIGNORE, GITIGNORE, LARGEST_FILE, Rules

PLAIN = [*"abab.c**?//", "**", "/**/", "**/", "/**", "[ab]", "[!a]", "[a-b]"]
ODD = [
    *" \\!#^-][é\t\r\udcff",
    *("\\ ", "\\/", "\\*", "\\!", "[a\\]b]", "[\\a-\\b]", "[]]", "[]-a]", "[^b]", "[z-a]", "[!-z]"),
    *("[--0]", "[a/b]", "[!/]", "[[:alpha:]]", "[![:punct:]]", "[[:space:]]", "[[:digit:]-b]"),
    *("[[:x:]]", "[:a]", "[[:a]"),
]
NAMES = [
    *(b"a", b"b", b"ab", b"ba", b"a.b", b".a", b"c", b"aab"),
    *(b"a b", b"b ", b"[a]", b"a-b", b"a\\b", b"b\\", b"!a", b"#a", b"\xc3\xa9", b"a\nb", b"a\n"),
    *(b"]", b"-", b"*", b"^", b"\t", b"\v", b"\xff"),
]


class Repository:
    """A tree on disk that git can be asked about."""

    def __init__(self, root: bytes, entries: "dict[bytes, bool]") -> None:
        self.root = root
        self.entries = entries
        """Whether it is a directory, by path; directories before what is in them."""

    def left_out_by_git(self, files: "Mapping[bytes, bytes]") -> "set[bytes]":
        """Ask git what these files leave out: every `.gitignore`, by its directory."""
        places = [os.path.join(self.root, directory, GITIGNORE) for directory in files]
        try:
            for place, text in zip(places, files.values()):
                Path(os.fsdecode(place)).write_bytes(text)
            answer = self.git("check-ignore", "--no-index", "-v", "-n", "-z", "--stdin")
        finally:
            for place in places:
                os.unlink(place)
        fields = answer.split(b"\0")[:-1]
        assert fields[3::4] == list(self.entries)
        answers = zip(fields[1::4], fields[2::4], fields[3::4])
        return {path for line, rule, path in answers if line and not rule.startswith(b"!")}

    def git(self, *arguments: str) -> bytes:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        ours.update(GIT_CONFIG_GLOBAL=os.devnull, GIT_CONFIG_NOSYSTEM="1")
        done = subprocess.run(
            ["git", "-c", "core.ignorecase=false", *arguments],
            cwd=self.root,
            env=ours,
            input=b"".join(path + b"\0" for path in self.entries),
            capture_output=True,
            check=False,
        )
        assert done.returncode in (0, 1), done.stderr
        return done.stdout

    def left_out(
        self, rules: Rules, files: "Mapping[bytes, Mapping[bytes, bytes]]"
    ) -> "set[bytes]":
        """Ask our rules, as a scan does: from the top, and nothing below what is left out."""
        known = {b"": rules.within(b"", files.get(b"", {}))}
        found = set()
        for path, is_directory in self.entries.items():
            directory, _, name = path.rpartition(b"/")
            if directory in found or known[directory].excludes(directory, name, is_directory):
                found.add(path)
            elif is_directory:
                known[path] = known[directory].within(path, files.get(path, {}))
        return found


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    root = os.fsencode(tmp_path_factory.mktemp("repository"))
    paths: list[tuple[bytes, ...]] = [(name,) for name in NAMES]
    paths += [(top, name) for top in (b"a", b"b", b"a\nb", b"[a]") for name in NAMES]
    paths += [(b"b", b"a", name) for name in NAMES[:8]]
    paths += [(b"a", b"ab", middle, name) for middle in (b"a", b"b", b"c") for name in NAMES[:6]]
    paths += [
        (b"ab", b"a", b"b", b"c", b"a"),
        (b"ab", b"b", b"a", b"a.b"),
        (b"ba", b"ab", b"b", b"a"),
    ]
    above = {b"/".join(path[:depth]) for path in paths for depth in range(1, len(path))}
    entries: dict[bytes, bool] = {}
    for number, path in enumerate(sorted(map(b"/".join, paths))):
        for depth in range(1, path.count(b"/") + 1):
            entries[b"/".join(path.split(b"/")[:depth])] = True
        place = os.path.join(root, path)
        try:
            if path in above or number % 3 == 0:
                os.makedirs(place, exist_ok=True)
            else:
                os.makedirs(os.path.dirname(place), exist_ok=True)
                Path(os.fsdecode(place)).touch()
        except OSError:  # macOS has no names that are not UTF-8
            continue
        entries[path] = os.path.isdir(place)
    made = Repository(root, entries)
    made.git("init", "-q")
    return made


def encoded(lines: "Iterable[str]") -> bytes:
    return "".join(line + "\n" for line in lines).encode("utf-8", "surrogateescape")


def lines(atoms: "list[str]", most: int = 6) -> "st.SearchStrategy[list[str]]":
    line = st.lists(st.sampled_from(atoms), min_size=1, max_size=most).map("".join)
    return st.lists(line, min_size=1, max_size=5)


any_lines = lines([*PLAIN, *PLAIN, *ODD, "!"])
negating = lines(PLAIN, 4).flatmap(
    lambda given: st.tuples(*(st.sampled_from([line, "!" + line]) for line in given)).map(list)
)
places = st.sampled_from([b"", b"a", b"b", b"b/a", b"a/ab", b"a/ab/b", b"ab", b"a\nb"])
bounded: Any = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.slow
@bounded
@given(st.dictionaries(places, any_lines | negating, min_size=1, max_size=4))
@example({b"": ["/a**/b", "!*.b"]})
@example({b"": ["a/**", "!a/ab", "a/*", "!a/ab/"]})
@example({b"": ["*"], b"a": ["!*"]})
@example({b"": ["*", "!*/"], b"a": ["!ab/"], b"a/ab": ["/a", "!c", "**/a.b"]})
@example({b"": ["*a*b*", "?[!a]", "[!a][!a]a"]})
@example({b"": ["/a[!b]b", "/*.b"]})
@example({b"": ["[a-\\c]"]})
@example({b"": ["/a/**\\/.a", "[[:space:]]"]})
@example({b"": ["a\\ ", "b\\\\  ", "b   ", "\\#a", "\\!a", "a//", "//a", "/", "!", "!!a"]})
def test_every_gitignore_counts_as_in_git(
    repository: Repository, given_lines: "dict[bytes, list[str]]"
) -> None:
    texts = {directory: encoded(given) for directory, given in given_lines.items()}
    files = {directory: {GITIGNORE: text} for directory, text in texts.items()}
    ours = repository.left_out(Rules.of([], gitignore=True), files)
    assert ours == repository.left_out_by_git(texts)


@pytest.mark.slow
@bounded
@given(lines(PLAIN) | any_lines | negating)
def test_ignore_and_a_checkpointignore_mean_what_a_gitignore_means(
    repository: Repository, given_lines: "list[str]"
) -> None:
    accepted, refused = [], []
    for line in given_lines:
        try:
            Rules.of([line])
            accepted.append(line)
        except InvalidInputError:
            refused.append(line)
    expected = repository.left_out_by_git({b"": encoded(accepted)})
    assert repository.left_out(Rules.of(accepted), {}) == expected
    in_a_file = {b"": {CHECKPOINTIGNORE: encoded(accepted)}}
    assert repository.left_out(Rules.of([]), in_a_file) == expected
    assert repository.left_out_by_git({b"": encoded(refused)}) == set()


def test_a_bracket_has_the_bytes_that_it_has_in_git(repository: Repository) -> None:
    names = "alnum alpha blank cntrl digit graph lower print punct space upper xdigit"
    brackets = [f"[[:{name}:]]" for name in names.split()]
    brackets += ["[]]", "[!]a]", "[]-a]", "[-a]", "[a-]", "[a--]", "[+--]", "[a-c-e]", "[z-a]"]
    brackets += [
        "[\\]]",
        "[\\a-\\c]",
        "[a-\\c]",
        "[\\--a]",
        "[[:digit:]-z]",
        "[^a]",
        "[^^]",
        "[!!]",
    ]
    brackets += [
        "[:a]",
        "[[:]",
        "[[:a]",
        "[[:a-c]",
        "[[:digit:]x[:upper:]]",
        "[é]",
        "[\udc80-\udcff]",
    ]
    # Git has another meaning for a path that begins with a colon.
    single = {bytes([n]): False for n in range(1, 256) if n not in b"./:"}
    every = Repository(repository.root, single)
    for bracket in brackets:
        expected = every.left_out_by_git({b"": encoded([bracket])})
        assert every.left_out(Rules.of([bracket]), {}) == expected, bracket


def excluded(rules: Rules, *paths: str) -> "list[str]":
    """The paths that are left out by themselves; directories end in a slash."""
    found = []
    for path in paths:
        directory, _, name = path.rstrip("/").encode().rpartition(b"/")
        if rules.excludes(directory, name, path.endswith("/")):
            found.append(path)
    return found


class TestWhichRulesHold:
    def test_no_rules_are_false(self) -> None:
        assert not Rules.of([])
        assert not Rules.of(["", "  ", "# *"], gitignore=True)
        assert not Rules.of(["!a"])
        assert Rules.of(["a"])
        assert Rules.of([]).within(b"", {CHECKPOINTIGNORE: b"a"})

    def test_a_checkpointignore_counts_in_the_root_only(self) -> None:
        rules = Rules.of([])
        assert not rules.reads_files
        assert rules.files(b"") == (b".checkpointignore",)
        assert rules.files(b"src") == ()
        assert rules.within(b"src", {CHECKPOINTIGNORE: b"*"}) is rules

    def test_a_gitignore_counts_if_asked_for(self) -> None:
        rules = Rules.of([], gitignore=True)
        assert rules.reads_files
        assert rules.files(b"") == (b".checkpointignore", b".gitignore")
        assert rules.files(b"src/app") == (b".gitignore",)
        assert not Rules.of([]).within(b"", {GITIGNORE: b"*"})

    def test_a_gitignore_counts_below_its_directory(self) -> None:
        rules = Rules.of([], gitignore=True).within(b"src", {GITIGNORE: b"/app/x\n*.o\n"})
        assert excluded(rules, "src/app/x", "src/a.o", "src/y/a.o") == [
            "src/app/x",
            "src/a.o",
            "src/y/a.o",
        ]
        assert excluded(rules, "src/y/app/x", "src/src/app/x") == []

    def test_files_that_say_nothing_change_nothing(self) -> None:
        rules = Rules.of(["*.log"], gitignore=True)
        assert rules.within(b"", {}) is rules
        assert rules.within(b"", {b"README": b"*", GITIGNORE: b""}) is rules

    def test_rules_are_not_changed_by_those_made_of_them(self) -> None:
        rules = Rules.of([], gitignore=True)
        assert excluded(rules.within(b"a", {GITIGNORE: b"x"}), "a/x") == ["a/x"]
        assert excluded(rules.within(b"b", {GITIGNORE: b"y"}), "b/x") == []

    def test_what_the_caller_says_is_stronger_than_what_files_say(self) -> None:
        rules = Rules.of(["secret", "!kept"], gitignore=True)
        rules = rules.within(b"", {CHECKPOINTIGNORE: b"!secret\nkept\nc\n!d", GITIGNORE: b"!c\nd"})
        rules = rules.within(b"a", {GITIGNORE: b"!secret\n!c\nd\ne"})
        assert excluded(rules, "a/secret", "a/kept", "a/c", "a/d", "a/e") == [
            "a/secret",
            "a/c",
            "a/e",
        ]

    def test_a_gitignore_says_nothing_of_what_is_gits_own(self) -> None:
        rules = Rules.of([], gitignore=True).within(b"", {GITIGNORE: b"*\n"})
        own = [".git/", ".git/refs/heads/build", "module/.git", "module/.git/logs/x.log"]
        assert excluded(rules, *own) == []
        assert excluded(rules, ".gitignore", ".github/", "x.git/", "module/") == [
            ".gitignore",
            ".github/",
            "x.git/",
            "module/",
        ]
        assert rules.files(b".git/hooks") == rules.files(b"module/.git") == ()
        assert excluded(Rules.of([".git"], gitignore=True), ".git/") == [".git/"]

    def test_the_ends_of_lines_and_the_mark_of_utf8_are_no_part_of_a_pattern(self) -> None:
        rules = Rules.of([]).within(b"", {CHECKPOINTIGNORE: b"\xef\xbb\xbfa\r\n\r\nb\0c\r\nd"})
        assert excluded(rules, "a", "b", "d", "c") == ["a", "b", "d"]

    def test_a_name_is_bytes(self) -> None:
        rules = Rules.of(["\udcff*", "caf?"])
        assert rules.excludes(b"", b"\xff\xfe", False)
        assert rules.excludes(b"\xff\n", b"\xff\n", False)
        assert rules.excludes(b"", b"cafe", False)
        assert not rules.excludes(b"", "café".encode(), False)  # as in git: `?` is one byte


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("pattern", "message"),
        [
            (b"a", "must be a string"),
            (None, "must be a string"),
            ("a\nb", "contains a line break or NUL"),
            ("a\0", "contains a line break or NUL"),
            ("\ud800", "file name"),
            ("a" * 1025, "line 2 has more than 1024 bytes"),
            ("a[b", r"line 2, 'a\[b': .*closed"),
            ("[[:letters:]]", "no class 'letters'"),
            ("a\\", "backslash"),
            ("/", "names nothing"),
            ("!", "names nothing"),
        ],
    )
    def test_a_pattern_that_cannot_work(self, pattern: Any, message: str) -> None:
        with pytest.raises(InvalidInputError, match=message):
            Rules.of(["*.log", pattern])

    @pytest.mark.parametrize("patterns", ["*.log", b"*.log"])
    def test_one_pattern_without_a_list(self, patterns: Any) -> None:
        with pytest.raises(InvalidInputError, match="must be a list"):
            Rules.of(patterns)

    def test_a_line_of_a_checkpointignore_that_can_match_nothing(self) -> None:
        rules = Rules.of([]).within(b"", {CHECKPOINTIGNORE: b"# rules\nx\na[\ny\n"})
        assert list(rules.errors) == [CHECKPOINTIGNORE]
        assert rules.errors[CHECKPOINTIGNORE].startswith("line 3, 'a['")
        assert excluded(rules, "x", "a", "y") == ["x", "y"]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (b"x\n" + b"#" * (LARGEST_FILE + 1), f"more than {LARGEST_FILE} bytes"),
            (b"x\n" + b"a" * 1025, "line 2"),
            (b"x\n" + b"a*b*c\n" * 2501, "5000 wildcards"),
            (b"x\n" + b"a\n!a\n" * 5001, "5000 wildcards and `!`"),
            (b"x\n" + b"[[:" * 300 + b"\n" + b"*" * 1000 + b"\n" + b"*\n" * 4000, "5000 wildcards"),
        ],
    )
    def test_a_file_that_would_take_too_long(self, text: bytes, message: str) -> None:
        rules = Rules.of([], gitignore=True).within(b"a", {GITIGNORE: text})
        assert list(rules.errors) == [b"a/.gitignore"]
        assert message in rules.errors[b"a/.gitignore"]
        assert rules.excludes(b"a", b"x", False)

    def test_a_file_of_the_largest_size_is_read(self) -> None:
        comment = b"#" * (LARGEST_FILE - 4) + b"\n"
        assert Rules.of([]).within(b"", {CHECKPOINTIGNORE: comment + b"a\n\n"})


class TestTime:
    @pytest.mark.parametrize(
        "pattern",
        [
            *("*a" * 300 + "b", "*?" * 300 + "b", "*[ab]" * 150 + "c", "?*" * 300 + "b"),
            *("**/" + "*a" * 300 + "b", "/**/a" * 150 + "/b", "**/*a*/" * 100 + "b"),
            *("/x" + "**\\/a" * 100, "**/a/*a*a/" * 80 + "**/b", "/**/*a*a*a*a" * 60 + "/b"),
        ],
    )
    def test_no_pattern_takes_long(self, pattern: str) -> None:
        rules = Rules.of([pattern])
        before = time.process_time()
        for directory, name in [
            (b"", b"a" * 255),
            (b"/".join([b"a" * 254] * 15), b"a" * 254),
            (b"/".join([b"a"] * 2000), b"a"),
            (b"x/" + b"/".join([b"aa"] * 1000), b"aa"),
        ]:
            assert not rules.excludes(directory, name, False)
        assert time.process_time() - before < 1

    def test_many_literal_patterns_cost_no_more_than_one(self) -> None:
        text = b"".join(b"name-%d/\n/path/%d\n" % (n, n) for n in range(30_000))
        rules = Rules.of([], gitignore=True).within(b"", {GITIGNORE: text})
        before = time.process_time()
        for n in range(20_000):
            assert not rules.excludes(b"src/app", b"module-%d.py" % n, n % 9 == 0)
        assert time.process_time() - before < 1
