"""The secret under which pickles are sealed: made once, private, outside every store."""

import os
import re
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import StateError, UntrustedDataError
from agent_checkpoint import seal as seal_module
from agent_checkpoint.core.state_codec import encode_state
from agent_checkpoint.seal import check_seal, make_seal, secret_file
from tests.exact import decode_state

DATA = b"pickled"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the user's config directory, which does not exist yet."""
    folder = tmp_path / "config"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    monkeypatch.delenv("AGENT_CHECKPOINT_SECRET", raising=False)
    return folder


def place(config: Path, content: bytes = b"0" * 64, mode: int = 0o600) -> Path:
    """Put a secret file where the library looks for it."""
    path = config / "agent-checkpoint" / "secret"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    path.chmod(mode)
    return path


class TestSecretFile:
    def test_it_is_made_when_first_needed_and_kept(self, config: Path) -> None:
        seal = make_seal(DATA)
        path = config / "agent-checkpoint" / "secret"
        assert secret_file() == path
        content = path.read_bytes()
        assert len(content.strip()) == 64
        assert make_seal(DATA) == seal
        check_seal(DATA, seal)
        assert path.read_bytes() == content

    @pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
    def test_nobody_else_can_read_it(self, config: Path, umask: int) -> None:
        before = os.umask(umask)
        try:
            make_seal(DATA)
        finally:
            os.umask(before)
        path = secret_file()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

    def test_no_other_file_is_left_beside_it(self, config: Path) -> None:
        make_seal(DATA)
        assert os.listdir(secret_file().parent) == ["secret"]

    def test_readable_states_need_none(self, config: Path) -> None:
        decode_state(encode_state({"a": (1, 2)}, "agent"), "agent")
        assert not config.exists()

    def test_checking_a_seal_makes_none(self, config: Path) -> None:
        with pytest.raises(
            UntrustedDataError, match=r"no secret to verify.*AGENT_CHECKPOINT_SECRET"
        ):
            check_seal(DATA, "0" * 64)
        assert not config.exists()

    def test_two_users_have_two_secrets(self, config: Path, monkeypatch: Any) -> None:
        seal = make_seal(DATA)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(config.parent / "other"))
        assert make_seal(DATA) != seal

    @pytest.mark.parametrize("config_home", ["", "relative/path"])
    def test_without_a_config_home_it_is_below_the_home(
        self, tmp_path: Path, monkeypatch: Any, config_home: str
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("XDG_CONFIG_HOME", config_home)
        assert secret_file() == tmp_path / ".config" / "agent-checkpoint" / "secret"


class TestEnvironment:
    def test_the_secret_of_the_environment_wins(self, config: Path, monkeypatch: Any) -> None:
        by_file = make_seal(DATA)
        monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "from the environment")
        assert make_seal(DATA) != by_file
        check_seal(DATA, make_seal(DATA))
        with pytest.raises(UntrustedDataError):
            check_seal(DATA, by_file)

    def test_no_file_is_made_then(self, config: Path, monkeypatch: Any) -> None:
        monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "from the environment")
        make_seal(DATA)
        assert not config.exists()

    def test_an_empty_one_counts_as_none(self, config: Path, monkeypatch: Any) -> None:
        monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "")
        make_seal(DATA)
        assert secret_file().exists()

    def test_it_may_hold_any_bytes(self, config: Path, monkeypatch: Any) -> None:
        monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "é\udcff")
        check_seal(DATA, make_seal(DATA))


class TestRefusedFiles:
    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666, 0o610])
    def test_one_that_others_may_read_is_refused(self, config: Path, mode: int) -> None:
        path = place(config, mode=mode)
        for use in (make_seal, lambda data: check_seal(data, "0" * 64)):
            with pytest.raises(StateError, match=r"other users can read .*secret.*chmod 600"):
                use(DATA)
        assert path.read_bytes() == b"0" * 64

    @pytest.mark.parametrize("content", [b"", b"short", b" " * 64, b"\n"])
    def test_a_damaged_one_is_refused_and_not_replaced(self, config: Path, content: bytes) -> None:
        path = place(config, content)
        for use in (make_seal, lambda data: check_seal(data, "0" * 64)):
            with pytest.raises(StateError, match="damaged"):
                use(DATA)
        assert path.read_bytes() == content

    def test_a_link_is_refused(self, config: Path, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.write_bytes(b"0" * 64)
        elsewhere.chmod(0o600)
        (config / "agent-checkpoint").mkdir(parents=True)
        (config / "agent-checkpoint" / "secret").symlink_to(elsewhere)
        with pytest.raises(StateError, match="cannot be used"):
            make_seal(DATA)

    def test_a_directory_in_its_place_is_refused(self, config: Path) -> None:
        path = config / "agent-checkpoint" / "secret"
        path.mkdir(parents=True, mode=0o700)
        with pytest.raises(StateError, match=f"{re.escape(str(path))} is not a regular file"):
            make_seal(DATA)

    def test_a_config_home_that_is_no_directory_is_reported(self, config: Path) -> None:
        config.write_text("a file")
        with pytest.raises(StateError, match=r"cannot be used.*set AGENT_CHECKPOINT_SECRET"):
            make_seal(DATA)

    def test_the_path_of_the_value_is_named(self, config: Path) -> None:
        place(config, mode=0o644)
        with pytest.raises(StateError, match=r"^agent\.a\[0\] needs your secret for its signature"):
            encode_state({"a": [range(3)]}, "agent")

    def test_without_a_home_there_is_a_clear_error(self, monkeypatch: Any) -> None:
        def no_home() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.delenv("XDG_CONFIG_HOME")
        monkeypatch.setattr(Path, "home", no_home)
        for use in (make_seal, lambda data: check_seal(data, "")):
            with pytest.raises(StateError, match="AGENT_CHECKPOINT_SECRET"):
                use(DATA)


class TestSeals:
    @pytest.mark.parametrize("seal", [None, "", "0" * 64, 5, [], {}, "é", "\ud800"])
    def test_what_is_not_the_seal_is_refused(self, config: Path, seal: Any) -> None:
        make_seal(DATA)
        with pytest.raises(UntrustedDataError, match=r"trust_pickle=True"):
            check_seal(DATA, seal)

    def test_the_seal_of_other_data_is_refused(self, config: Path) -> None:
        with pytest.raises(UntrustedDataError):
            check_seal(DATA + b".", make_seal(DATA))

    def test_the_seal_is_no_plain_hmac_of_the_data(self, config: Path, monkeypatch: Any) -> None:
        # A user's secret may serve other programs too: what they sign must not be a seal here.
        import hashlib
        import hmac

        monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "shared")
        with pytest.raises(UntrustedDataError):
            check_seal(DATA, hmac.new(b"shared", DATA, hashlib.sha256).hexdigest())

    def test_messages_do_not_quote_the_secret(self, config: Path, monkeypatch: Any) -> None:
        monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "hunter2-hunter2")
        with pytest.raises(UntrustedDataError) as caught:
            check_seal(DATA, "0" * 64)
        assert "hunter2" not in str(caught.value)


class TestRace:
    def test_creators_at_the_same_time_agree_on_one_secret(self, config: Path) -> None:
        start, seals = threading.Barrier(8), []

        def create() -> None:
            start.wait()
            seals.append(make_seal(DATA))

        threads = [threading.Thread(target=create) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(seals) == 8
        assert len(set(seals)) == 1
        assert os.listdir(secret_file().parent) == ["secret"]

    def test_the_secret_of_another_process_that_was_first_counts(
        self, config: Path, monkeypatch: Any
    ) -> None:
        link = os.link

        def late(source: Any, target: Any, **options: Any) -> None:
            Path(target).write_bytes(b"1" * 64)
            Path(target).chmod(0o600)
            link(source, target, **options)

        monkeypatch.setattr(os, "link", late)
        seal = make_seal(DATA)
        assert secret_file().read_bytes() == b"1" * 64
        check_seal(DATA, seal)
        assert os.listdir(secret_file().parent) == ["secret"]


class TestTheLastSecret:
    """A secret is read again only if its file may be another one."""

    @pytest.fixture
    def reads(self, config: Path, monkeypatch: pytest.MonkeyPatch) -> "list[Path]":
        place(config)
        reads: list[Path] = []
        read = seal_module._read_checked

        def counted(path: Path) -> Any:
            reads.append(path)
            return read(path)

        monkeypatch.setattr(seal_module, "_read_checked", counted)
        monkeypatch.setattr(seal_module, "_last", None)
        return reads

    @pytest.fixture
    def settled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(seal_module, "_SETTLED_NS", -(10**10))

    def test_it_is_read_once(self, reads: "list[Path]", settled: None) -> None:
        assert make_seal(b"said") == make_seal(b"said")
        assert len(reads) == 1

    def test_one_that_was_just_written_is_read_again(self, reads: "list[Path]") -> None:
        assert make_seal(b"said") == make_seal(b"said")
        assert len(reads) == 2

    def test_another_one_in_its_place_counts(
        self, reads: "list[Path]", settled: None, config: Path
    ) -> None:
        first, secret = make_seal(b"said"), secret_file()
        fresh = secret.with_name("fresh")
        fresh.write_bytes(b"1" * 64)
        fresh.chmod(0o600)
        found = secret.stat()
        os.utime(fresh, ns=(found.st_atime_ns, found.st_mtime_ns))
        fresh.rename(secret)
        assert make_seal(b"said") != first

    def test_it_is_checked_again_after_a_change_of_its_mode(
        self, reads: "list[Path]", settled: None
    ) -> None:
        make_seal(b"said")
        time.sleep(0.02)
        secret_file().chmod(0o644)
        with pytest.raises(StateError, match="chmod 600"):
            make_seal(b"said")

    def test_a_removed_one_is_not_used(self, reads: "list[Path]", settled: None) -> None:
        first = make_seal(b"said")
        secret_file().unlink()
        assert make_seal(b"said") != first


def test_the_path_of_the_secret_follows_the_user(monkeypatch, tmp_path):
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    users = {1: tmp_path / "one", 2: tmp_path / "two"}
    for user, home in users.items():
        monkeypatch.setattr(seal_module.os, "getuid", lambda user=user: user)
        monkeypatch.setattr(seal_module.Path, "home", lambda home=home: home)
        assert seal_module.secret_file().is_relative_to(home)
