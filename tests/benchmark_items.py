"""A few rows of each benchmark in its own columns and nesting, written into folders as its repository lies on the hub,
and a small hub on loopback that serves them.

The questions are ours; columns, types and file names are the data sets'.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import http.server
import json
import pickle
import threading
import urllib.parse
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

MATH500 = [
    {
        "problem": f"Compute ${i} + {i}$.",
        "solution": f"We get $\\boxed{{{2 * i}}}$.",
        "answer": str(2 * i),
        "subject": ("Algebra", "Prealgebra")[i % 2],
        "level": 1 + i % 5,
        "unique_id": f"test/algebra/{i}.json",
    }
    for i in range(40)
]
AIME25 = [{"problem": f"Find ${i}^2$.", "answer": str(i * i), "id": str(i)} for i in range(3)]
MMLU = [
    {
        "question": f"Which number is {i}?",
        "subject": "abstract_algebra",
        "choices": [str(i + k) for k in range(4)],
        "answer": 0,
    }
    for i in range(12)
] + [
    {
        "question": "Which hold?",
        "subject": "formal_logic",
        "choices": ["The first", "The second", "Both of the above", "Neither of the above"],
        "answer": 2,
    }
]


def _rlpr(question: str, truth: str) -> dict[str, Any]:
    return {
        "data_source": "WebInstruct-verified",
        "prompt": [{"content": "A conversation.", "role": "system"}, {"content": question, "role": "user"}],
        "ability": "Physics",
        "reward_model": {"ground_truth": truth, "style": "rule"},
        "extra_info": {"answer_type": "Float", "category": "Physics", "difficulty": "University"},
        "uid": question[-4:],
    }


RLPR = [_rlpr(f"How far does it go in {i} s at 2 m/s?", f"{2 * i} m") for i in range(30)] + [
    _rlpr("Which city?", "Paris"),
    _rlpr("How much, at length?", "3.1415926535897932384626433832795"),
]


def packed(tests: list[dict[str, str]]) -> str:
    """As LiveCodeBench packs its private tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def _livecodebench(name: str, content: str, starter: str, public: list, private: list, function: str = "") -> dict:
    kind = "functional" if function else "stdin"
    tests = [[{"input": i, "output": o, "testtype": kind} for i, o in rows] for rows in (public, private)]
    return {
        "question_title": name,
        "question_content": content,
        "platform": "leetcode" if function else "atcoder",
        "question_id": name,
        "contest_id": "c1",
        "contest_date": "2025-01-04T00:00:00",
        "starter_code": starter,
        "difficulty": "easy",
        "public_test_cases": json.dumps(tests[0]),
        "private_test_cases": packed(tests[1]),
        "metadata": json.dumps({"func_name": function} if function else {}),
    }


LIVECODEBENCH = [
    _livecodebench(
        "double", "Read numbers, one a line; print the double of each.", "",
        [("1\n2\n", "2\n4\n")], [("10\n", "20\n"), ("-3\n", "-6"), ("0\n", "0\n")],
    ),
    _livecodebench(
        "pairs", "Count the pairs i < j with a sum of k.",
        "class Solution:\n    def pairs(self, nums: List[int], k: int) -> int:\n        ",
        [("[1, 2, 3]\n3", "1")], [("[1, 1, 1]\n2", "3"), ("[]\n0", "0")], "pairs",
    ),
]  # fmt: skip

BIGCODEBENCH = [
    {
        "task_id": f"BigCodeBench/{i}",
        "complete_prompt": "...",
        "instruct_prompt": "Write a function task_func(text) that counts the words of a text.",
        "canonical_solution": "    return Counter(text.split())",
        "code_prompt": "from collections import Counter\ndef task_func(text):\n",
        "test": "import unittest\nclass TestCases(unittest.TestCase):\n"
        "    def test_words(self):\n        self.assertEqual(task_func('a b a'), {'a': 2, 'b': 1})\n"
        "    def test_none(self):\n        self.assertEqual(task_func(''), {})\n",
        "entry_point": "task_func",
        "doc_struct": "{}",
        "libs": libs,
    }
    for i, libs in enumerate(("['collections']", "['collections', 'pandas']"))
]
MTBENCH = [
    {"prompt": ["Name a prime.", "And the next one?"], "prompt_id": 81, "category": "math", "reference": ["2", "3"]},
    {"prompt": ["Write a haiku.", "Now without an e."], "prompt_id": 82, "category": "writing", "reference": []},
]
GPQA = [
    {
        "Pre-Revision Question": "x",
        "Question": f"CANARY question {i}",
        "Correct Answer": f"right {i}\n",
        "Incorrect Answer 1": f"wrong {i} a",
        "Incorrect Answer 2": f"wrong {i} b",
        "Incorrect Answer 3": f"wrong {i} c",
        "Explanation": "x",
        "High-level domain": "Physics",
        "Record ID": f"rec{i}",
    }
    for i in range(8)
]


CARDS = {
    "mmlu": "configs:\n- config_name: all\n  data_files:\n  - {split: test, path: all/test-*}\n"
    "  - {split: validation, path: all/validation-*}\n"
    "- config_name: anatomy\n  data_files:\n  - {split: test, path: anatomy/test-*}",
    "livecodebench": "configs:\n- config_name: v1\n  data_files:\n  - {split: test, path: v1/test-*}\n"
    "- config_name: v6\n  data_files:\n  - {split: test, path: v6/test-*}",
    "bigcodebench": "configs:\n- config_name: default\n  data_files:\n  - {split: v0.1.4, path: data/v0.1.4-*}",
    "gpqa": "configs:\n- config_name: gpqa_diamond\n  data_files: gpqa_diamond.csv",
}


def _jsonl(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _parquet(path: Path, rows: list[dict], schema: Any = None) -> None:
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), path)


def write_all(root: Path) -> dict[str, Path]:
    """A folder for each benchmark, as `hf download ... --local-dir` leaves it."""
    import pyarrow as pa

    folders = {
        name: root / name
        for name in ("math500", "mmlu", "rlpr", "livecodebench", "aime25", "bigcodebench", "mtbench", "gpqa")
    }
    for name, folder in folders.items():
        folder.mkdir(parents=True)
        (folder / "README.md").write_text(f"---\n{CARDS.get(name, 'license: mit')}\n---\n", encoding="utf-8")
    _jsonl(folders["math500"] / "test.jsonl", MATH500)
    _jsonl(folders["aime25"] / "test.jsonl", AIME25)
    schema = pa.schema(
        [
            ("question", pa.string()),
            ("subject", pa.string()),
            ("choices", pa.list_(pa.string())),
            ("answer", pa.int64()),
        ]
    )  # the hub's file says of `answer` that it is a class label
    label = {"info": {"features": {
        "question": {"dtype": "string", "_type": "Value"}, "subject": {"dtype": "string", "_type": "Value"},
        "choices": {"feature": {"dtype": "string", "_type": "Value"}, "_type": "Sequence"},
        "answer": {"names": ["A", "B", "C", "D"], "_type": "ClassLabel"},
    }}}  # fmt: skip
    schema = schema.with_metadata({"huggingface": json.dumps(label)})
    _parquet(folders["mmlu"] / "all" / "test-00000-of-00001.parquet", MMLU, schema)
    _parquet(folders["mmlu"] / "all" / "validation-00000-of-00001.parquet", MMLU[:5], schema)
    _parquet(folders["mmlu"] / "anatomy" / "test-00000-of-00001.parquet", MMLU[:1], schema)
    _parquet(folders["rlpr"] / "rlpr_train.parquet", RLPR)
    for version, rows in (("v6", LIVECODEBENCH), ("v1", LIVECODEBENCH[:1])):
        _parquet(folders["livecodebench"] / version / "test-00000-of-00001.parquet", rows)
    _parquet(folders["bigcodebench"] / "data" / "v0.1.4-00000-of-00001.parquet", BIGCODEBENCH)
    _parquet(folders["mtbench"] / "data" / "train-00000-of-00001.parquet", MTBENCH)
    with open(folders["gpqa"] / "gpqa_diamond.csv", "w", encoding="utf-8", newline="") as f:
        writer = csv.DictWriter(f, list(GPQA[0]))
        writer.writeheader()
        writer.writerows(GPQA)
    return folders


# ---- a hub on loopback --------------------------------------------------------------------------------------

SHA = "0" * 40  # the commit of every repository


class _Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub's API as `datasets` asks for when it streams; gated repositories want the token "ours"."""

    protocol_version = "HTTP/1.1"
    folders: dict[str, Path] = {}
    gated: frozenset[str] = frozenset()

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, code: int, body: bytes = b"{}", **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).strip("/")
        api, parts = path.startswith("api/"), path.removeprefix("api/").removeprefix("datasets/").split("/")
        repo, rest = "/".join(parts[:2]), parts[2:]
        folder = self.folders.get(repo)
        if folder is None:
            return self._answer(404, X_Error_Code="RepoNotFound")
        if repo in self.gated and (not api or rest) and self.headers.get("Authorization") != "Bearer ours":
            return self._answer(401, X_Error_Code="GatedRepo")
        files = sorted(f.relative_to(folder).as_posix() for f in folder.rglob("*") if f.is_file())
        if api:
            return self._answer(200, json.dumps(self._listing(repo, folder, files, rest, sent)).encode())
        name = "/".join(rest[2:])
        if rest[:1] != ["resolve"] or name not in files:
            return self._answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=SHA)
        data, code, more = (folder / name).read_bytes(), 200, {}
        if (asked := self.headers.get("Range")) and self.command == "GET":
            start, end = asked.removeprefix("bytes=").split("-")
            stop = min(int(end or len(data)), len(data) - 1)
            code, more = 206, {"Content_Range": f"bytes {start}-{stop}/{len(data)}"}
            data = data[int(start) : stop + 1]
        tag = hashlib.sha1(name.encode()).hexdigest()
        self._answer(code, data, ETag=f'"{tag}"', X_Repo_Commit=SHA, Accept_Ranges="bytes", **more)

    do_HEAD = do_POST = do_GET

    def _listing(self, repo: str, folder: Path, files: list[str], rest: list[str], sent: str) -> Any:
        if rest[:1] not in (["tree"], ["paths-info"]):
            return {"id": repo, "sha": SHA, "private": False, "gated": repo in self.gated, "disabled": False,
                    "downloads": 0, "likes": 0, "tags": [], "siblings": [{"rfilename": f} for f in files]}  # fmt: skip
        above = {str(p) for f in files for p in PurePosixPath(f).parents} - {"."}
        entries = [{"type": "directory", "path": d, "size": 0, "oid": SHA} for d in sorted(above)]
        entries += [{"type": "file", "path": f, "size": (folder / f).stat().st_size, "oid": SHA} for f in files]
        if rest[0] == "paths-info":
            wanted = json.loads(sent)["paths"] if sent.startswith("{") else urllib.parse.parse_qs(sent)["paths"]
            return [e for e in entries if e["path"] in wanted]
        base = "/".join(rest[2:])
        inside = [e for e in entries if not base or e["path"].startswith(base + "/")]
        deep = "recursive=true" in self.path.lower()
        return [e for e in inside if deep or str(PurePosixPath(e["path"]).parent) == (base or ".")]


@contextlib.contextmanager
def hub(folders: dict[str, Path], gated: frozenset[str] = frozenset()) -> Iterator[str]:
    """Serves repositories (by "owner/name") while the block runs; gives the address."""
    handler = type("Hub", (_Hub,), {"folders": folders, "gated": gated})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
