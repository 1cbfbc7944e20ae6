from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.detached.run_links import RunLinks, named_runs, short_name

NAMES = {
    "runs/2026-01-31/12-00-59-wine_mlp": "wine_mlp 01-31 12-00",
    "sweeps/2026-01-31/12-00-00-wine_mlp/optim.lr=0.01,seed=0": "lr=0.01,seed=0 wine_mlp 01-31 12-00",
    "sweeps/2026-01-31/12-00-00-a/data=wine": "data=wine a 01-31 12-00",
    "sweeps/2026-01-31/12-00-00-a/optim.lr=1,finetune.head.lr=2": "optim.lr=1,finetune.head.lr=2 a 01-31 12-00",
    "mine/first": "mine first",
}


def run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "events.out.tfevents.1.host.1.0").touch()
    return folder


@pytest.mark.parametrize(("path", "name"), NAMES.items())
def test_what_tells_a_run_from_others_comes_first(tmp_path: Path, path: str, name: str) -> None:
    assert short_name(tmp_path / path, tmp_path) == name


def test_every_run_has_a_link_of_its_own(tmp_path: Path) -> None:
    runs, place = tmp_path / "outputs", tmp_path / "links"
    place.mkdir()
    found = [run(runs / path) for path in NAMES]
    found.append(run(runs / "runs/2026-01-31/12-00-07-wine_mlp"))
    run(found[0] / "inner")
    (runs / "again").symlink_to(runs)
    links = RunLinks(runs, place)
    links.refresh()
    linked = {link.name: link.resolve() for link in place.iterdir()}
    assert sorted(linked.values()) == sorted(found)
    assert {*linked} == {*NAMES.values(), "wine_mlp 01-31 12-00 (2)"}


def test_runs_come_and_go_and_names_stay(tmp_path: Path) -> None:
    runs, place = tmp_path / "outputs", tmp_path / "links"
    place.mkdir()
    old = run(runs / "runs/2026-01-31/12-00-09-a")
    links = RunLinks(runs, place)
    links.refresh()
    new = run(runs / "runs/2026-01-31/12-00-01-a")
    links.refresh()
    assert (place / "a 01-31 12-00").resolve() == old
    assert (place / "a 01-31 12-00 (2)").resolve() == new
    (old / "events.out.tfevents.1.host.1.0").unlink()
    old.rmdir()
    links.refresh()
    assert [link.name for link in place.iterdir()] == ["a 01-31 12-00 (2)"]


def test_the_folder_of_a_run_itself(tmp_path: Path) -> None:
    with named_runs(run(tmp_path / "2026-01-31/12-00-00-a"), tmp_path / "links") as place:
        assert [link.name for link in place.iterdir()] == ["a 01-31 12-00"]
    assert not place.exists()


def test_where_no_links_can_be_made_runs_go_by_their_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError

    folder = run(tmp_path / "outputs/a").parent
    monkeypatch.setattr(Path, "symlink_to", refuse)
    with named_runs(folder, tmp_path / "links") as place:
        assert place == folder


def test_links_that_a_killed_board_has_left_go(tmp_path: Path) -> None:
    place = tmp_path / "links"
    place.mkdir()
    (place / "gone").symlink_to(tmp_path / "nowhere")
    with named_runs(run(tmp_path / "outputs/a").parent, place):
        assert [link.name for link in place.iterdir()] == ["a"]


def test_a_run_of_several_models_is_one_link_from_its_beginning(tmp_path: Path) -> None:
    run, place = tmp_path / "runs" / "demo", tmp_path / "links"
    member = run / "members" / "00"
    member.mkdir(parents=True)
    place.mkdir()
    (run / "config.yaml").touch()
    (member / "events.out.tfevents.1.host").touch()
    RunLinks(tmp_path / "runs", place).refresh()
    assert [link.name for link in place.iterdir()] == ["demo"]
