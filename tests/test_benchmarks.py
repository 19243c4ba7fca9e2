"""Benchmarks: their rows as questions, samples, the cache, the way to the hub and its failures, and grading them."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import socket
import subprocess
import sys
import time
import warnings
from dataclasses import replace

import benchmark_items
import pytest

from trinity_mini import benchmarks, hub
from trinity_mini.benchmark_tasks import BENCHMARKS, TRAINED_ON, TRANSFER, Item, shuffled
from trinity_mini.benchmarks import grader, load
from trinity_mini.episode import run
from trinity_mini.files import UserError
from trinity_mini.pool import Reply

pytest.importorskip("datasets", reason="pip install -e .[llm]")

pytestmark = pytest.mark.filterwarnings("ignore:.*were read")  # of a few rows of each set


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return benchmark_items.write_all(tmp_path_factory.mktemp("hub"))


def test_all_of_the_papers_sets_are_there():
    assert set(BENCHMARKS) == {*TRAINED_ON, *TRANSFER} and len(BENCHMARKS) == 8
    assert all({"test", "train"} == set(BENCHMARKS[name].sources) for name in TRAINED_ON)


def test_a_question_of_each(folders):
    asked = {name: load(name, root=folders[name]) for name in BENCHMARKS}
    for name, items in asked.items():
        assert items and all(item.family == name and item.prompt and item.id for item in items)
        assert len({item.id for item in items}) == len(items) == len(set(items))
    assert [i.gold for i in asked["aime25"]] == ["0", "1", "4"] and asked["aime25"][2].prompt.startswith("Find $2^2$.")
    assert {i.kind for i in asked["math500"]} == {"Algebra", "Prealgebra"}
    assert [i.kind for i in asked["livecodebench"]] == ["stdin", "functional"]
    assert "def pairs" in asked["livecodebench"][1].prompt and asked["livecodebench"][1].gold["function"] == "pairs"
    assert asked["mtbench"][0].gold == "2\n\n3" and asked["mtbench"][1].gold == ""
    assert "(1) Name a prime." in asked["mtbench"][0].prompt and "(2) And the next one?" in asked["mtbench"][0].prompt
    assert asked["bigcodebench"][1].gold["libs"] == ["collections", "pandas"]


def test_no_prompt_gives_its_answer_away(folders):
    for row, item in zip(benchmark_items.MATH500, load("math500", "train", root=folders["math500"]), strict=False):
        assert row["solution"] not in item.prompt
    for item in load("livecodebench", root=folders["livecodebench"]):
        assert item.gold["private"] not in item.prompt
    assert "gold" not in repr(item)


def test_options_are_shuffled_by_seed_and_question_and_the_letter_follows(folders):
    for name, rows in (("mmlu", benchmark_items.MMLU), ("gpqa", benchmark_items.GPQA)):
        letters = set()
        for seed in range(3):
            for row, item in zip(rows, load(name, seed=seed, root=folders[name]), strict=True):
                right = row["choices"][row["answer"]] if name == "mmlu" else row["Correct Answer"].strip()
                assert f"({item.gold}) {right}\n" in item.prompt
                letters.add(item.gold)
        assert letters == set("ABCD")
    first, again, other = (load("gpqa", seed=s, root=folders["gpqa"]) for s in (0, 0, 1))
    assert first == again and [i.id for i in first] == [i.id for i in other]
    assert [i.gold for i in first] != [i.gold for i in other]


@pytest.mark.parametrize("last", ["All of the above", "Both A and B", "A and C only", "None of the above"])
def test_options_that_speak_of_others_stay_in_place(last):
    options = ["one", "two", "three", last]
    assert all(shuffled(options, 3, seed, "x") == (options, "D") for seed in range(8))


def test_letters_are_evenly_spread():
    counts = dict.fromkeys("ABCD", 0)
    for i in range(400):
        counts[shuffled(["w", "x", "y", "z"], 0, 0, str(i))[1]] += 1
    assert min(counts.values()) > 70  # 100 are expected, with a deviation of 8.7


def test_rlpr_keeps_short_numbers_only(folders):
    items = [i for split in ("test", "train") for i in load("rlpr", split, root=folders["rlpr"])]
    assert len(items) == 30 and {i.gold for i in items} == {f"{2 * i} m" for i in range(30)}


def test_train_and_test_share_no_question(folders):
    for name in ("math500", "rlpr"):
        train, test = ({i.prompt for i in load(name, s, root=folders[name])} for s in ("train", "test"))
        assert not train & test and len(train) > len(test) > 0


def test_samples_are_the_seeds_and_grow(folders):
    root = folders["math500"]
    small, large, other = (load("math500", "train", n, seed, root) for n, seed in ((5, 0), (9, 0), (5, 1)))
    assert large[:5] == small != other and len({i.id for i in large}) == 9
    assert small != load("math500", "train", root=root)[:5]  # not simply the first
    with pytest.raises(UserError, match="ask for no more than that"):
        load("math500", "test", 100, root=root)
    with pytest.raises(UserError, match="at least 1"):
        load("math500", "test", 0, root=root)


def test_wrong_names_are_told(folders, tmp_path):
    with pytest.raises(UserError, match="choose from math500, mmlu"):
        load("math501")
    with pytest.raises(UserError, match="no split 'train': choose from test"):
        load("gpqa", "train")
    with pytest.raises(UserError, match="hf download math-ai/aime25 --repo-type dataset"):
        load("aime25", root=tmp_path)


def test_damaged_files_are_told_without_their_contents(folders, tmp_path):
    (tmp_path / "test.jsonl").write_text('{"problem": "CANARY", "answer": ', encoding="utf-8")
    with pytest.raises(UserError, match="download it again") as told:
        load("aime25", root=tmp_path)
    assert "CANARY" not in str(told.value) and told.value.__cause__ is None
    (tmp_path / "test.jsonl").write_text('{"problem": "CANARY", "id": "1"}\n', encoding="utf-8")
    with pytest.raises(UserError, match="column 'answer'"):
        load("aime25", root=tmp_path)
    (tmp_path / "gpqa_diamond.csv").write_text("Question,Correct Answer\nCANARY,CANARY\n", encoding="utf-8")
    with pytest.raises(UserError) as told:
        load("gpqa", root=tmp_path)
    assert "CANARY" not in str(told.value) and told.value.__suppress_context__


def jsonl(tmp_path, *rows):
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("content", ["", "\n\n", "\n" * 5000])
def test_files_without_rows_are_told(tmp_path, content):
    (tmp_path / "test.jsonl").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match="download (it|them) again"):
        load("aime25", root=tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"problem": None}, {"problem": " "}, {"answer": None}, {"answer": {"a": 1}}, {"answer": " "}, {"answer": 0.5},
        {"unique_id": None}, {"subject": 5}, {"problem": "x" * 300_000},
    ],
)  # fmt: skip
def test_rows_of_other_types_are_refused_at_once(tmp_path, change):
    row = {"problem": "1+1", "answer": "2", "unique_id": "u", "subject": "s"}
    with pytest.raises(UserError, match="is not as it was"):
        load("math500", "train", root=jsonl(tmp_path, row | change))


GOOD = {"problem": "1+1", "answer": "2", "id": "u"}


@pytest.mark.parametrize("line", ["null", "5", '"x"', "[[]]", "[null]", "true", "{} null", "NaN"])
@pytest.mark.parametrize("before", ["", json.dumps(GOOD) + "\n"])
def test_lines_that_are_no_objects_are_refused(tmp_path, line, before):
    """In an interpreter of its own: `null` alone in a file once crashed it."""
    (tmp_path / "test.jsonl").write_text(f"\n{before}{line}\n", encoding="utf-8")
    with pytest.raises(UserError, match="download it again"):
        load("aime25", root=tmp_path)


def test_a_list_of_objects_is_read(tmp_path):
    for text in (json.dumps([GOOD]), json.dumps([GOOD], indent=1), "\ufeff" + json.dumps(GOOD)):
        (tmp_path / "test.jsonl").write_text(text, encoding="utf-8")
        assert [i.gold for i in load("aime25", root=tmp_path)] == ["2"]


def test_a_part_of_a_set_is_told(tmp_path):
    with pytest.warns(UserWarning, match="math-ai/aime25 has 30 rows for 'test', but 1 were read"):
        load("aime25", root=jsonl(tmp_path, GOOD))
    whole = [GOOD | {"problem": f"{i}+{i}", "id": str(i)} for i in range(30)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(load("aime25", root=jsonl(tmp_path, *whole))) == 30
    folder = tmp_path / "all"
    folder.mkdir()
    (folder / "test-00000-of-00002.parquet").write_bytes(b"x")
    with pytest.raises(UserError, match="1 of 2 files"):
        load("mmlu", root=tmp_path)


def test_one_id_is_one_question(tmp_path):
    assert len(load("aime25", root=jsonl(tmp_path, GOOD, GOOD))) == 1
    with pytest.raises(UserError, match="row 2 of math-ai/aime25 has the id of an earlier row"):
        load("aime25", root=jsonl(tmp_path, GOOD, GOOD | {"problem": "1+2"}))


@pytest.mark.parametrize(
    "choices", [["1", "2", "2", "3"], ["1", "2", " 1 ", "3"], ["1", "2", "", "3"], ["1", "2", " ", "3"]]
)
def test_options_that_are_equal_or_empty_are_left_out_and_told(choices):
    row = benchmark_items.MMLU[0]
    with pytest.warns(UserWarning, match="1 of 2 rows of cais/mmlu are left out"):
        items = list(benchmarks._items(BENCHMARKS["mmlu"], "test", 0, iter([row, row | {"choices": choices}])))
    assert len(items) == 1
    with pytest.raises(UserError, match="no question"):
        list(benchmarks._items(BENCHMARKS["mmlu"], "test", 0, iter([row | {"choices": choices}])))


def test_options_of_gpqa_are_text_whatever_they_say(tmp_path):
    names = ("Correct Answer", *(f"Incorrect Answer {k}" for k in (1, 2, 3)))
    rows = [
        benchmark_items.GPQA[i] | dict(zip(names, options, strict=True))
        for i, options in enumerate([("None", "NA", "NaN", "null"), ("0.5", "1", "2", "03"), ("1", "2", "3", "")])
    ]
    with open(tmp_path / "gpqa_diamond.csv", "w", encoding="utf-8", newline="") as f:
        writer = csv.DictWriter(f, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    with pytest.warns(UserWarning, match="1 of 3 rows of Idavidrein/gpqa are left out"):
        items = load("gpqa", root=tmp_path)
    assert len(items) == 2 and all(f") {o}\n" in items[0].prompt for o in ("None", "NA", "NaN", "null"))
    assert ") 0.5\n" in items[1].prompt and ") 03\n" in items[1].prompt
    text = (tmp_path / "gpqa_diamond.csv").read_text(encoding="utf-8")
    for damaged in (text[:-30], text.replace(",", ";"), text + '"x'):
        (tmp_path / "gpqa_diamond.csv").write_text(damaged, encoding="utf-8")
        with pytest.raises(UserError):
            load("gpqa", root=tmp_path)


ODD = {
    "mmlu": [{"answer": -1}, {"answer": 4}, {"answer": None}, {"choices": "abcd"}, {"choices": [1, 2, 3, 4]},
             {"choices": ["x"] * 30}, {"question": 5}, {"question": " "}, {"subject": None}],
    "livecodebench": [{"metadata": "[" * 100_000}, {"metadata": "[1]"}, {"metadata": '{"func_name": 5}'},
                      {"private_test_cases": None}, {"question_id": None}, {"question_content": None},
                      {"question_content": ""}],
    "bigcodebench": [{"libs": "-" * 100_000 + "1"}, {"libs": "5"}, {"libs": "[5]"}, {"test": None},
                     {"instruct_prompt": "\n"}],
    "mtbench": [{"prompt": []}, {"prompt": [1]}, {"prompt": ["", "x"]}, {"reference": [5]}, {"prompt_id": None}],
    "rlpr": [{"prompt": []}, {"prompt": [{"role": "user", "content": 5}]}, {"reward_model": None},
             {"prompt": [{"role": "user", "content": " "}]}],
}  # fmt: skip


@pytest.mark.parametrize(("name", "change"), [(name, change) for name, changes in ODD.items() for change in changes])
def test_an_odd_row_of_each_set_is_refused(name, change):
    row = getattr(benchmark_items, name.upper())[0]
    with pytest.raises(UserError, match="is not as it was"):
        list(benchmarks._items(BENCHMARKS[name], "test", 0, iter([row | change])))


# ---- the hub ------------------------------------------------------------------------------------------------

PROGRAM = """
import json, os, sys, time
from pathlib import Path
from trinity_mini.benchmarks import load
from trinity_mini.files import UserError
for name in sys.argv[2:]:
    name, _, os.environ["HF_TOKEN"] = name.partition("@")
    start = time.monotonic()
    try:
        said = [[i.id, i.prompt, i.gold] for i in load(name, cache=Path(sys.argv[1]))]
    except UserError as e:
        said = str(e)
    print(json.dumps([name + "@" * bool(os.environ["HF_TOKEN"]), said, time.monotonic() - start]))
"""


def fresh(endpoint, cache, *names):
    """What a new interpreter gets from a hub at an address, which is read at import; "gpqa@ours" with a token."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and not k.lower().endswith("_proxy")}
    plain |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(cache / "hf"), "PYTHONUTF8": "1", "USE_TORCH": "0"}
    command = [sys.executable, "-c", PROGRAM, str(cache), *names]
    done = subprocess.run(command, env=plain, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return {name: (said, seconds) for name, said, seconds in map(json.loads, done.stdout.splitlines())}


def test_the_hub_gives_what_a_folder_gives_and_is_asked_once(folders, tmp_path):
    repositories = {BENCHMARKS[name].hub: folder for name, folder in folders.items()}
    names = list(BENCHMARKS) if os.environ.get("TRINITY_MINI_THOROUGH") else ["mmlu", "livecodebench", "aime25", "gpqa"]
    with benchmark_items.hub(repositories, frozenset({"Idavidrein/gpqa"})) as endpoint:
        told = fresh(endpoint, tmp_path, *names, "gpqa@ours")
        assert "accept its terms" in told["gpqa"][0] and "HF_TOKEN" in told["gpqa"][0]
        assert "CANARY" not in told["gpqa"][0]
    told["gpqa"] = told["gpqa@"]
    for name in names:
        assert told[name][0] == [[i.id, i.prompt, i.gold] for i in load(name, root=folders[name])], name
        assert load(name, cache=tmp_path) == load(name, root=folders[name])  # the hub is gone
    assert not [f for f in tmp_path.iterdir() if f.suffix == ".tmp"]


def test_without_network_the_remedy_comes_at_once(tmp_path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        said, seconds = fresh(f"http://127.0.0.1:{closed.getsockname()[1]}", tmp_path, "mmlu")["mmlu"]
    assert "hf download cais/mmlu --repo-type dataset" in said and "root=" in said
    assert seconds < 4


def test_the_offline_switch_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set.*unset it, or run `hf download"):
        load("mmlu", cache=tmp_path)


def test_a_hub_that_never_answers_costs_seconds(tmp_path, monkeypatch):
    import huggingface_hub.constants

    def silent(address, timeout):
        time.sleep(min(timeout, 0.2))
        raise TimeoutError

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(hub.socket, "create_connection", silent)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "https://hub.invalid")
    with pytest.raises(UserError, match="does not answer"):
        load("aime25", cache=tmp_path)


def test_a_damaged_cache_is_told(tmp_path):
    path = tmp_path / "aime25-test-all-0.jsonl"
    header = json.dumps({"format": benchmarks.FORMAT, "hub": BENCHMARKS["aime25"].hub, "revision": None}) + "\n"
    row = {"family": "aime25", "prompt": "p", "gold": "1", "id": "i", "kind": ""}
    path.write_text(header + json.dumps(row) + "\n", encoding="utf-8")
    assert load("aime25", cache=tmp_path) == [Item(**row)]
    odd = [{"family": "mmlu"}, {"prompt": 5}, {"prompt": ""}, {"gold": None}, {"gold": ["1"]}, {"id": 1}, {"more": 1}]
    rows = ["", "[" * 100_000, "[1]", *(json.dumps(row | change) for change in odd)]
    for content in ("", "{}\n", '{"format": 0}\n', "\xff", *(header + text for text in rows)):
        path.write_text(content, encoding="latin-1")
        with pytest.raises(UserError, match="delete it"):
            load("aime25", cache=tmp_path)


# ---- grading ------------------------------------------------------------------------------------------------


class Judge:
    names, identity = ["judge"], "x"

    def __init__(self, text):
        self.text, self.asked = text, []

    async def reply(self, agent, messages):
        self.asked.append(messages)
        return Reply(self.text)


def test_right_and_wrong_answers_of_each(folders):
    pytest.importorskip("math_verify")
    right = {
        "math500": lambda i: f"It is $\\boxed{{{i.gold}}}$.",
        "aime25": lambda i: i.gold,
        "mmlu": lambda i: f"The answer is ({i.gold}).",
        "gpqa": lambda i: i.gold,
        "rlpr": lambda i: i.gold.removesuffix(" m") + " meters",
    }
    items = [item for name in right for item in load(name, root=folders[name])]
    grade = grader(items)

    async def all_of(answers):
        return await asyncio.gather(*(grade(i, a) for i, a in zip(items, answers, strict=True)))

    assert set(run(all_of([right[i.family](i) for i in items]))) == {1.0}
    assert set(run(all_of(["-1/7" for _ in items]))) == {0.0}
    assert set(run(all_of([None] * len(items)))) == {0.0}


def test_graders_leave_the_event_loop_free_and_run_two_at_a_time(monkeypatch):
    running = []

    def slow(gold, answer):
        running.append(1)
        most.append(len(running))
        time.sleep(0.1)
        running.pop()
        return True

    most: list[int] = []
    monkeypatch.setattr(benchmarks, "grade_math", slow)
    item = Item("aime25", "?", "1", "1")
    grade, ticks = grader("aime25"), []

    async def both():
        async def tick():
            while True:
                ticks.append(1)
                await asyncio.sleep(0.01)

        ticking = asyncio.ensure_future(tick())
        verdicts = await asyncio.gather(*(grade(item, "1") for _ in range(6)))
        ticking.cancel()
        return verdicts

    assert run(both()) == [1.0] * 6
    assert max(most) == 2 and len(ticks) > 5


def test_what_cannot_be_told_is_none_and_not_zero():
    assert run(grader("rlpr")(Item("rlpr", "?", "Paris", "1"), "Paris")) is None


def test_a_grader_that_fails_ends_no_run(monkeypatch):
    def broken(gold, answer):
        raise errors[-1]

    errors: list[Exception] = []
    monkeypatch.setattr(benchmarks, "grade_math", broken)
    for error in (ValueError("x"), RecursionError(), MemoryError(), KeyError("x")):
        errors.append(error)
        assert run(grader("aime25")(Item("aime25", "?", "1", "1"), "1")) is None
    errors.append(UserError("install it."))
    with pytest.raises(UserError, match="install it"):
        run(grader("aime25")(Item("aime25", "?", "1", "1"), "1"))
    with pytest.raises(UserError, match="unknown sandbox 'proces': choose from auto"):
        grader("livecodebench", sandbox="proces")


def test_mt_bench_needs_a_judge_and_takes_its_score(folders):
    with pytest.raises(UserError, match="judged_by="):
        grader("mtbench")
    first, second = load("mtbench", root=folders["mtbench"])
    judge = Judge("Fine.\nScore: 8")
    grade = grader("mtbench", judged_by=judge)
    assert run(grade(first, "2 and 3")) == 0.8 and run(grade(first, None)) == 0.0
    assert "[REFERENCE]\n2\n\n3\n" in judge.asked[0][1]["content"] and "2 and 3" in judge.asked[0][1]["content"]
    run(grade(second, "x"))
    assert "REFERENCE" not in judge.asked[1][1]["content"]
    assert run(grader("mtbench", judged_by=Judge("no score"))(first, "2")) is None
    assert run(grader("mtbench", judged_by=Judge(None))(first, "2")) is None
    with pytest.raises(UserError, match="unknown benchmark"):
        grader([replace(first, family="no")])


def test_a_whole_episode_is_played_and_graded(folders):
    from trinity_mini.episode import fixed, play
    from trinity_mini.roles import Role

    item = load("math500", root=folders["math500"])[0]
    pool = Judge(f"I add. <answer>{item.gold}</answer>")
    episode = run(play(item, fixed([(0, Role.WORKER)] * 5), pool, grade=grader("math500")))
    assert episode.reward == 1.0 and episode.answer == item.gold and episode.question is item
