"""The embedded agents behind litellm: the same replies, true usage, no cost, few batches."""

import asyncio

import pytest

from trinity_mini import tiny_provider
from trinity_mini.episode import Decision, Transcript, Turn, play, play_all, run, uniforms
from trinity_mini.llm_calls import load
from trinity_mini.llm_pool import LLMPool
from trinity_mini.pool import EmbeddedPool, Reply
from trinity_mini.roles import Role
from trinity_mini.tasks import FAMILIES, questions
from trinity_mini.tiny_provider import ADDRESS, register, tiny_pool_file


@pytest.fixture(scope="module")
def litellm():
    module = load()
    register()
    register()
    return module


@pytest.fixture(scope="module")
def pool():
    return EmbeddedPool()


def conversations():
    """Every role's messages before and after a plan and an answer, of two questions a family."""
    for question in [q for f in FAMILIES for q in questions(f, "test", 2, 0)]:
        said = [(Role.THINKER, question.plan), (Role.WORKER, question.answer)]
        turns = tuple(Turn(0, role, Reply(text)) for role, text in said)
        for transcript in (Transcript(question.prompt), Transcript(question.prompt, turns)):
            yield from (transcript.messages(role) for role in Role)


def test_replies_are_those_of_the_embedded_pool_in_few_batches(litellm, pool, monkeypatch):
    behind, sizes = EmbeddedPool(), []
    batches = behind._batcher.run
    monkeypatch.setattr(behind._batcher, "run", lambda batch: sizes.append(len(batch)) or batches(batch))
    monkeypatch.setattr(tiny_provider, "_pool", lambda: behind)
    asked = [(agent, m) for m in conversations() for agent in range(len(pool.names))]

    async def through_litellm():
        return await asyncio.gather(
            *(
                litellm.acompletion(
                    model=f"tiny/{pool.names[a]}", messages=m, api_base=ADDRESS + pool.identity, temperature=0.7
                )
                for a, m in asked
            )
        )

    async def directly():
        return await asyncio.gather(*(pool.reply(a, m) for a, m in asked))

    found, wanted = run(through_litellm()), run(directly())
    assert len({r.text for r in wanted}) > 30
    for response, reply in zip(found, wanted, strict=True):
        choice, usage = response.choices[0], response.usage
        assert (choice.message.content, choice.finish_reason) == (reply.text, reply.finish_reason)
        assert {k: usage[k] for k in reply.usage} == reply.usage
        assert usage.total_tokens == sum(reply.usage.values())
        assert litellm.completion_cost(response) == 0
    assert sum(sizes) == len(asked)
    assert len(sizes) < len(asked) / 4  # measured: 4 batches for 720


def test_the_plain_completion_too_in_a_notebook_too(litellm, pool):
    messages = next(conversations())
    wanted = run(pool.reply(0, messages)).text

    async def cell():
        return litellm.completion(model="tiny/ada", messages=messages).choices[0].message.content

    assert litellm.completion(model="tiny/ada", messages=messages).choices[0].message.content == wanted
    assert asyncio.run(cell()) == wanted


def test_a_lone_message_is_a_question_to_a_worker(litellm):
    said = litellm.completion(model="tiny/ada", messages=[{"role": "user", "content": "capital peru"}])
    assert said.choices[0].message.content == "lima"


def test_errors_are_those_of_a_server(litellm):
    messages = next(conversations())
    with pytest.raises(litellm.NotFoundError, match="choose ada, bo"):
        litellm.completion(model="tiny/zoe", messages=messages)
    with pytest.raises(litellm.BadRequestError, match="other weights"):
        litellm.completion(model="tiny/ada", messages=messages, api_base=ADDRESS + "0123")
    with pytest.raises(litellm.BadRequestError, match="role prompt"):
        nice = [{"role": "system", "content": "Be nice."}, {"role": "user", "content": "hello"}]
        litellm.completion(model="tiny/ada", messages=nice)


def test_registered_once(litellm):
    assert [p["provider"] for p in litellm.custom_provider_map].count("tiny") == 1


def test_the_pool_file_names_the_agents_and_their_weights(pool):
    agents = tiny_pool_file().agents
    assert [a.name for a in agents] == list(pool.names)
    assert all(a.model == f"tiny/{a.name}" and a.price_in == a.price_out == 0 for a in agents)
    assert all(pool.identity in a.api_base for a in agents)


def random_choices(i):
    """The same choices of agents and roles in both pools."""
    draws = uniforms(5, 3, i)

    async def decide(transcript, turn):
        return Decision(int(draws[turn, 0] * 5), Role(int(draws[turn, 1] * 3)))

    return decide


def test_episodes_in_an_llm_pool_are_those_of_the_embedded_pool(pool, tmp_path):
    asked = [q for f in FAMILIES for q in questions(f, "test", 6, 0)]

    def played(by):
        return run(play_all([play(q, random_choices(i), by) for i, q in enumerate(asked)]))

    wanted = played(pool)
    with LLMPool(tiny_pool_file(), tmp_path) as paid:
        found = played(paid)
        rows = run(paid.check())
    assert sum(len(e.turns) for e in wanted) > 80
    assert found == wanted
    assert [(r["agent"], r["outcome"]) for r in rows] == [(name, "answered") for name in pool.names]
