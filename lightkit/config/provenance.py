"""Who wrote the configuration of a run: this project, which signs it, or anybody; and what counts of anybody's.

A signature is an HMAC over the project and the text. The key is `lightkit/key` in the user's state folder
(`$XDG_STATE_HOME`, `~/.local/state`), so it comes along in no archive, and nobody else can sign. It counts only if
nobody else can have written or read it.

What a run from elsewhere may do is in `lightkit.config.policy`: it builds nothing but what the user has named, and keys
that only the user sets have their defaults.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import shlex
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from omegaconf import DictConfig

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.reading import UnreadableError, opened, parse_json
from lightkit.config.judging import judge, paths_in
from lightkit.config.member_values import nested
from lightkit.config.origins import shown
from lightkit.config.policy import Trust
from lightkit.config.project import project_of, project_root
from lightkit.config.tree import Silent, plain_tree
from lightkit.processes.files import belongs_to_us, make_user_state, put_in_place, user_state, write_whole

Origin = Literal["ours", "changed", "foreign", "unsigned"]
BY_OVERRIDE = "trust=[{}] if you know who made it"
"""How a user names what a run may build."""
_KEY_BYTES = 32
_MOST_SIGNATURES, _MOST_BYTES = 100, 1 << 16
_ELSEWHERE = "XDG_STATE_HOME=FOLDER in the environment, a folder of yours that lasts"


class RunSignature(NamedTuple):
    """One line of the file of signatures."""

    project: str
    """Folder of the project; empty where there was none. It speaks for the modules of this project alone."""
    inode: int
    """Its number in the file system, which a folder keeps when it is renamed."""
    mac: str
    """The HMAC."""


def sign_run(run: Path, text: str, sign: Callable[[str], RunSignature | None] | None = None) -> bool:
    """Sign a configuration that is about to be written into the folder of a run; those before it stay signed.

    Args:
        run: The folder.
        text: The configuration as YAML.
        sign: What `signer` gave; None asks it.

    Returns:
        Whether it is signed; nothing is where this user has no key that counts.
    """
    new = (sign or signer())(text)
    if new is None:
        return False
    kept = [*(item for item in _read_signatures(run) if item != new), new][-_MOST_SIGNATURES:]
    with suppress(OSError):  # a full disk stops the run where it matters
        write_whole(run / run_files.SIGNATURES, "".join(f"{json.dumps(item._asdict())}\n" for item in kept))
    return True


def signer() -> Callable[[str], RunSignature | None]:
    """Return what signs any YAML that this project writes, or gives None where this user has no key that counts."""
    root, (key, _) = project_root(), _find_key(make=True)
    project, inode = str(root or ""), _inode(root)
    return lambda text: RunSignature(project, inode, _mac(key, project, inode, text)) if key is not None else None


def is_ours(run: Path, text: str, signatures: Iterable[RunSignature] | None = None) -> bool:
    """Tell whether this project wrote a configuration into the folder of a run, as far as that can be proved.

    It holds for the project we are in, and for the one in which the run lies: also where their folders were renamed.

    Args:
        run: The folder; it may have been moved since.
        text: The configuration as YAML.
        signatures: Signatures that were kept elsewhere; None takes those in the folder.
    """
    key, _ = _find_key()
    if key is None or not _belongs_to_us(run):
        return False
    known = _of_project(run, _read_signatures(run) if signatures is None else signatures)
    pairs = [(item.mac, _mac(key, item.project, item.inode, text)) for item in known]
    return any(hmac.compare_digest(theirs.encode(errors="replace"), right.encode()) for theirs, right in pairs)


def origin_of(run: Path, text: str) -> Origin:
    """Tell where the configuration in the folder of a run comes from, as far as its signatures say.

    Args:
        run: The folder.
        text: The configuration as YAML.

    Returns:
        `ours` where this project wrote it; `changed` where the project signed another one, or with another key;
        `foreign` where another project signed it; `unsigned` where nobody did.
    """
    signatures = _read_signatures(run)
    if is_ours(run, text, signatures):
        return "ours"
    return "changed" if _of_project(run, signatures) else "foreign" if signatures else "unsigned"


def _of_project(run: Path, signatures: Iterable[RunSignature]) -> list[RunSignature]:
    """Return the signatures of the project we are in, or of the one in which a run lies."""
    homes = [home for home in (project_root(), project_of(run)) if home is not None]
    names, inodes = {str(home) for home in homes} or {""}, {_inode(home) for home in homes}
    return [item for item in signatures if item.project in names or item.inode in inodes]


def _read_signatures(run: Path) -> list[RunSignature]:
    """Read the signatures in a folder, whoever wrote them."""
    found = list[RunSignature]()
    with suppress(OSError, ValueError):
        with opened(run / run_files.SIGNATURES) as file:
            lines = file.read(_MOST_BYTES).decode().splitlines()
        for line in lines[:_MOST_SIGNATURES]:
            with suppress(UnreadableError):
                found += read_signature(parse_json(line))
    return found


def read_signature(content: Any) -> list[RunSignature]:
    """Read a signature from what JSON gave; nothing where it is none."""
    with suppress(TypeError):
        item = RunSignature(**content)
        if [type(value) for value in item] == [str, int, str]:
            return [item]
    return []


def _mac(key: bytes, project: str, inode: int, text: str) -> str:
    lines = text.rstrip("\n").split("\n")
    while lines and lines[0].startswith("#"):  # comments above it are in the file only
        del lines[0]
    signed = json.dumps([project, inode, "\n".join(lines)])
    return hmac.new(key, signed.encode(), hashlib.sha256).hexdigest()


def _inode(folder: Path | None) -> int:
    try:
        return folder.stat().st_ino if folder is not None else 0
    except OSError:
        return 0


def _belongs_to_us(run: Path) -> bool:
    """Tell whether nobody else owns the folder of a run, or the one that it will be made in."""
    there = next((place for place in (run, *run.parents) if place.exists()), run)
    try:
        return belongs_to_us(there.stat())
    except OSError:
        return False


class KeyProblem(NamedTuple):
    """Why no key counts."""

    what: str
    """What is wrong."""
    fix: str
    """What helps."""


class _UnsafeKey(Exception):
    """A key that does not count; its arguments are those of `KeyProblem`."""


def key_problem() -> KeyProblem | None:
    """Say why this user has no key that counts; None where there is one, or one can be made."""
    return _find_key(make=True)[1]


def _find_key(*, make: bool = False) -> tuple[bytes | None, KeyProblem | None]:
    """Return the user's key, made with `make` where there is none, and what is wrong where none counts."""
    state = user_state()
    if state is None:
        return None, KeyProblem("this user has no home to keep a key in", _ELSEWHERE)
    try:
        if make:
            _make_key(make_user_state(state))
        return _read_key(state), None
    except _UnsafeKey as error:
        return None, KeyProblem(*error.args)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not make:
            return None, None
        return None, KeyProblem(f"no key can be kept in {state}: {error.strerror}", _ELSEWHERE)


def _make_key(state: Path) -> None:
    """Write a key where there is none. Of several processes the first one does; none sees half a key."""
    path, temporary = state / "key", state / f"key.{os.getpid()}.{secrets.token_hex(4)}"
    if os.path.lexists(path):
        return
    try:
        with os.fdopen(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without a second name for a file
            put_in_place(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _read_key(state: Path) -> bytes:
    """Read the key; whoever may write its folder, or read it, could sign.

    Raises:
        _UnsafeKey: It does not count.
        OSError: There is none, or it cannot be read.
    """
    path, folder = state / "key", state.stat()
    if not belongs_to_us(folder):
        raise _UnsafeKey(f"{state} belongs to another user", _ELSEWHERE)
    if _is_open(folder, stat.S_IWGRP | stat.S_IWOTH):
        raise _UnsafeKey(f"others may write to {state}", f"chmod 700 {shlex.quote(str(state))}")
    anew = f"rm {shlex.quote(str(path))}, and the next run makes another key"
    if path.is_symlink():
        raise _UnsafeKey(f"the key {path} is a link", anew)
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # it may be a pipe
    with os.fdopen(os.open(path, flags), "rb") as file:
        facts = os.fstat(file.fileno())
        if not belongs_to_us(facts):
            raise _UnsafeKey(f"the key {path} belongs to another user", anew)
        if _is_open(facts, stat.S_IRWXG | stat.S_IRWXO):
            raise _UnsafeKey(f"others may read or write the key {path}", anew)
        content = file.read(_KEY_BYTES + 1) if stat.S_ISREG(facts.st_mode) else b""
    if len(content) != _KEY_BYTES:
        raise _UnsafeKey(f"{path} is damaged, or no key", anew)
    return content


def _is_open(facts: os.stat_result, bits: int) -> bool:
    """Tell whether others have one of these rights; Windows does not tell by these bits."""
    return os.name != "nt" and bool(facts.st_mode & bits)


def foreign_targets(cfg: DictConfig, run: Path, trust: Trust, *, fix: str = BY_OVERRIDE) -> UserError | None:
    """Make the error for targets that only the user can allow, all of them in one; None where there are none.

    Args:
        cfg: The configuration; its `trust` is what the user has named so far.
        run: Folder of the run that it came with.
        trust: What could be built if this project had written the run.
        fix: What to do, with a place for what to name.
    """
    tree = plain_tree(cfg, Silent())
    entries, ensemble = tree.get("trust"), tree.get("ensemble")
    named = [entry for entry in entries if isinstance(entry, str)] if isinstance(entries, list) else []
    members = ensemble.get("members") if isinstance(ensemble, dict) else ()
    values = [nested(entry) for entry in members if isinstance(entry, dict)] if isinstance(members, list) else []
    targets = dict.fromkeys(node["_target_"] for _, node in paths_in([tree, *values]))
    narrow = trust.of_stranger(named)
    refused = [target for target in targets if judge(target, narrow) and not judge(target, trust)]
    if not refused:
        return None
    problem = key_problem()
    what = "the run comes from elsewhere, and would build parts that only you can allow"
    expected = "a run that this project wrote: on this machine, by this user, its config.yaml left as it was"
    expected += f" (that cannot be told: {problem.what}; {problem.fix})" if problem else ""
    facts: dict[str, Any] = {"expected": expected, "received": ", ".join(refused)}
    facts["fix"] = fix.format(", ".join(dict.fromkeys([*named, *refused])))
    return UserError(what, key=shown(run), **facts, family="run-from-elsewhere")


def refuse_foreign_targets(cfg: DictConfig, run: Path) -> None:
    """Refuse targets that the user has not named, in a configuration that came with a checkpoint.

    Args:
        cfg: The configuration to go on with; its `trust` is what the user has named.
        run: Folder of the run.

    Raises:
        UserError: There are such targets.
    """
    error = foreign_targets(cfg, run, Trust.of_run(run))
    if error is not None:
        raise error


def check_key(jobs: Sequence[DictConfig], folder: Path) -> None:
    """Refuse what other processes are to train, where these could not tell that it comes from this user.

    Args:
        jobs: Their configurations.
        folder: The folder that they go to.

    Raises:
        UserError: This user has no key that counts, and one of them builds what needs one.
    """
    problem = key_problem()
    if problem and any(cfg.trust or foreign_targets(cfg, folder, Trust.of_run(folder)) for cfg in jobs):
        what = f"the jobs could not know that this sweep is yours: {problem.what}"
        raise UserError(what, key=shown(folder), fix=problem.fix, family="run-from-elsewhere")
