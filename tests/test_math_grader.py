r"""Mathematical answers: a table of cases with the verdict a careful teacher gives, and where bare math-verify differs.

Bare math-verify is asked at its best: it may read the answer as it stands or between dollar signs, and is right about
a case if it says yes in either reading exactly when the teacher does.
"""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
import time
from fractions import Fraction

import pytest

from trinity_mini import math_grader
from trinity_mini.files import UserError
from trinity_mini.math_checker import Checker
from trinity_mini.math_grader import final_answers, grade_math
from trinity_mini.math_text import number

pytest.importorskip("math_verify", reason="pip install -e .[llm]")

RIGHT = r"""
# integers, signs, thousands
42 | 42
42 | 42.
42 | $42$
42 | \(42\)
42 | \[42\]
42 | **42**
42 | \boxed{42}
42 | $\boxed{42}$.
42 | The answer is $\boxed{42}$.
42 | The answer is 42.
42 | So 6 * 7 = 42, and the final answer is: 42
42 | Answer: 42
42 | 042
-7 | −7
-7 | $-7$
-7 | \boxed{-7}
1000 | 1,000
10,\!000 | 10000
10{,}000 | 10,000
1,234,567 | 1234567
32,\!348 | \$32,348
5 | 5.0
0 | -0
5 | +5
2^{10} | 1024
100 | 10^2
6 | 3!
# fractions, decimals, mixed numbers
\frac{1}{2} | 0.5
\frac{1}{2} | .5
\frac{1}{2} | 1/2
\frac12 | \dfrac{1}{2}
\frac{3}{4} | \tfrac34
\frac{14}{3} | 14/3
\frac{14}{3} | $\frac{28}{6}$
\frac{14}{3} | 4\frac{2}{3}
\frac{14}{3} | 4 2/3
-\frac{3}{4} | \frac{-3}{4}
-\frac{3}{4} | -3/4
-\frac{3}{4} | -0.75
\frac{3}{-4} | -\frac{3}{4}
0.35 | \frac{7}{20}
\frac{1}{3} | 0.33333333
1\frac{4}{5} | 1.8
\frac 59 | \frac{5}{9}
\frac{9}{19} | \boxed{\dfrac{9}{19}}
3.14 | 3.140
# percent, degrees, money
10\% | 10
10\% | 10%
10\% | 0.1
10\% | \frac{1}{10}
10 | 10\%
0.1 | 10\%
25\% | 25 \%
12.5\% | \frac{1}{8}
90^\circ | 90
90^\circ | 90°
90 | 90^{\circ}
90^\circ | 90 degrees
45 | 45^\circ
\$5 | 5
\$5 | 5 dollars
\$18.90 | 18.90
18.90 | $18.90
5 | \$5.00
# units
5 | 5 cm
5\text{ cm} | 5
5 \text{ cm} | 5cm
5\text{ cm} | 5\ \mathrm{cm}
5\text{ cm}^2 | 5
5\text{ square inches} | 5\text{ in}^2
6\text{ meters} | 6 m
12 \text{ hours} | 12 h
30 | 30 mph
30\text{ miles per hour} | 30 mph
4 | 4 units
7 | 7\text{ ways}
3 | \boxed{3\text{ apples}}
27 | 27 \text{ cubic feet}
\frac{1}{2}\text{ cm} | 0.5 cm
# roots, powers, constants, complex numbers
\sqrt{2} | \frac{2}{\sqrt{2}}
2\sqrt{3} | \sqrt{12}
\sqrt{13} | √13
3\sqrt{5} | 3 \cdot \sqrt{5}
\frac{\sqrt{3}}{3} | \frac{1}{\sqrt{3}}
\frac{\pi}{2} | \pi/2
\frac{\pi}{2} | 0.5\pi
\frac{\pi}{2} | π/2
2\pi | 6.283185307
4\pi | 4 \times \pi
3+4i | 4i + 3
3+4i | \boxed{3 + 4i}
\frac{1+i}{2} | \frac{1}{2} + \frac{i}{2}
e^2 | \exp(2)
\log_2 8 | 3
2^{1/2} | \sqrt{2}
# polynomials and other expressions
x^2-1 | (x-1)(x+1)
(x+2)(x-3) | x^2 - x - 6
x^2+2x+1 | 1 + 2x + x^2
2x+3 | 3 + 2x
\frac{x+1}{2} | \frac{x}{2} + \frac12
\frac{1}{x-1} | -\frac{1}{1-x}
3n^2 | 3 \cdot n^2
p - q | -q + p
x^3+3x-6 | $x^3 + 3x - 6$
6-5i | -5i+6
(x-5)(x+5) | (x+5)(x-5)
# equations, names
3 | x=3
3 | x = 3
x=3 | 3
x=3 | x = 3
3 | $x = \frac{6}{2} = 3$
5 | 2+3=5
y=2x+3 | y = 3 + 2x
y = 2x+3 | 2x+3
y=2x+3 | 2x - y + 3 = 0
f(x)=x+1 | x+1
x^2+y^2=1 | y^2 + x^2 = 1
12 | a_1 = 12
10 | n = 10
# inequalities and intervals
[2,5) | [2,5)
[2,5) | $[2, 5)$
[2,5) | \left[2,5\right)
[2,5) | \boxed{[2,5)}
[2,5) | x \in [2,5)
(3,\infty) | (3,\infty)
(3,\infty) | (3, ∞)
(3,\infty) | x > 3
[-1,1] | -1 \le x \le 1
[0,\frac{1}{2}] | [0, 0.5]
(-\infty,1)\cup(2,\infty) | (-\infty, 1) \cup (2, \infty)
(-\infty,1)\cup(2,\infty) | (2,\infty)\cup(-\infty,1)
(-\infty,1)\cup(2,\infty) | (-∞,1) ∪ (2,∞)
x \geq 2 | x \ge 2
x > 2 | 2 < x
(-2,1] | (-2, 1]
# pairs and vectors
(1,2) | (1,2)
(1,2) | (1, 2)
(1,2) | $(1,2)$
(1,2) | \left(1,2\right)
(3,-\frac12) | (3, -0.5)
\left( 3, \frac{\pi}{2} \right) | (3, \pi/2)
(2,2,2) | \boxed{(2, 2, 2)}
(1,2) | (x,y) = (1,2)
\left(\frac{3}{2}, -13\right) | (1.5,-13)
\begin{pmatrix}1\\2\end{pmatrix} | \begin{bmatrix} 1 \\ 2 \end{bmatrix}
# lists and sets, in any order
1, 2 | 1, 2
1, 2 | 2, 1
1,-2 | x=1 or x=-2
1,-2 | 1 and -2
1,-2 | $1$ and $-2$
1,-2 | x = -2, x = 1
1,-2 | \boxed{1} and \boxed{-2}
1,-2 | \{-2, 1\}
\{1,2\} | \{2,1\}
\{1,2,3\} | \{3, 2, 1\}
\{1,2\} | 1, 2
\{1,2\} | \left\{1, 2\right\}
3 \pm 2\sqrt{2} | 3 + 2\sqrt{2}, 3 - 2\sqrt{2}
3 + 2\sqrt{2}, 3 - 2\sqrt{2} | 3 \pm 2\sqrt{2}
\pm 2 | 2, -2
(1,2),(2,1) | (2,1), (1,2)
-1, \frac{1}{2} | 0.5, -1
1 \pm \sqrt{19} | 1 \pm \sqrt{19}
3, 5, 7 | 3,5,7
# matrices
\begin{pmatrix}1&2\\3&4\end{pmatrix} | \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}
\begin{pmatrix}1&2\\3&4\end{pmatrix} | \begin{bmatrix}1&2\\3&4\end{bmatrix}
\begin{pmatrix}\frac12&0\\0&1\end{pmatrix} | \begin{pmatrix}0.5&0\\0&1\end{pmatrix}
\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix} | \begin{pmatrix} -\frac{1}{3} \\ \frac{2}{3} \end{pmatrix}
# words and options
\text{E} | E
\text{E} | \boxed{\text{E}}
\text{E} | \text{(E)}
\text{(E)} | E
\text{(C)} | (C)
A | \boxed{A}
\text{Evelyn} | Evelyn
\text{Evelyn} | \boxed{\text{Evelyn}}
\text{even} | even
\text{even} | Even.
east | \text{East}
\text{June 20} | June 20
\text{Yes} | yes
\text{ellipse} | an answer: ellipse
# bases
2516_8 | 2516_8
2516_8 | 2516_{8}
2516_8 | 2516
1011_2 | 1011
4343_6 | \boxed{4343_6}
# boxes and tags in replies
\frac{3}{4} | First \boxed{1}. No, wait: the answer is \boxed{\frac{3}{4}}.
\frac{\sqrt{5}}{2} | \boxed{\frac{\sqrt{5}}{2}}
\sqrt{\frac{1}{2}} | \boxed{\boxed{\sqrt{\frac{1}{2}}}}
8 | We get $2^3 = 8$, so the answer is $8$.
70 | Working: 35 + 35⏎Final answer: 70
# written in other ways
6,\ 8 | 8, 6
\frac{270}7\text{ degrees} | \frac{270}{7}^\circ
15\mbox{ cm}^2 | 15 \text{ square centimeters}
\{1\pm\sqrt{5},-2\} | \{-2, 1+\sqrt5, 1-\sqrt{5}\}
3\sqrt[3]{2} | 3 \cdot 2^{1/3}
0.\overline{3} | \frac13
(-\infty,-3)\cup(3,\infty) | x < -3 or x > 3
[0, \infty) | [0, +\infty)
2.5 \times 10^6 | 2.5e6
10^{100} | 10^{100}
\binom{5}{2} | 10
\left\{ -2, 1\right\} | {-2, 1}
\frac{\sqrt{2}}{2} | \sin 45^\circ
\cot x | \frac{\cos x}{\sin x}
y = -\frac{1}{2}x + 3 | x + 2y = 6
\text{3:30 p.m.} | 3:30 pm
5 | there are 5 apples
5 | `5`
16 | **Final Answer**⏎⏎$$\boxed{16}$$
16 | \boxed{16}⏎⏎Let me know if you have questions!
16 | The answer is 16.⏎⏎Let me know!
# display formulas, signs, prose, units: each with its like among the wrong ones
5 | The answer is⏎\[⏎5⏎\]
5 | \[⏎x = 5⏎\]
5 | $$⏎5⏎$$
\frac12 | The answer is:⏎⏎$$⏎\frac{1}{2}⏎$$
5 | Thus⏎$$⏎x=5⏎$$
(1,2) | \[⏎(1,⏎2)⏎\]
-5 | The answer is negative 5
5 | He needs 5 more apples.
5 | The area under the curve is 5.
5 | The maximum is 5.
5 | The least possible value is 5.
5 | The total comes to 5.
5 | The lengths add up to 5.
5 | If we halve it, there are 5 left.
5 | There are 5 ways.
5 | He won 5 times.
5\text{ cm} | The length is 5 cm.
5\text{ cm} | The length is 5 cm long.
5\text{ apples} | There are 5 in all.
5 | 5.000000
\frac{1}{3} | 0.3333333
\frac{7}{2} | 3½
\frac{1}{2} | ½
\frac{3}{4} | ¾
-\frac{1}{2} | -½
4 | 2²
x^2 | x²
36\text{ cm}^2 | 36 cm²
36 | 36 cm²
60^\circ | 60º
60^\circ | 60∘
-3 | －3
\sqrt[3]{4} | ∛4
1.6 \times 10^{-19} | 1.6 × 10⁻¹⁹
1.6 \times 10^{-19} | 1.6e-19
\frac{2}{3} | 0.\bar{6}
\emptyset | \varnothing
\begin{pmatrix}1\\2\end{pmatrix} | \begin{pmatrix}1\\[2pt]2\end{pmatrix}
(0,1) | ]0,1[
[0,1) | [0,1[
(0,1)\cup(2,3) | ]0,1[ \cup ]2,3[
(-\infty,\infty) | \mathbb{R}
(-\infty,\infty) | x \in \mathbb{R}
x > 5 | (5,\infty)
1 \le x \le 3 | [1,3]
\ln 2 | ln(2)
6\pi | 6*pi
6\pi | 6 pi
5 | The value of $x$ is 5.
5 | The value of $x$ is $5$.
5 | So 5 is the answer.
5 | 5 is the final answer.
5 | #### 5
5 | *5*
5 | _5_
5 | 5 (five)
5 | $5$ (since $2+3=5$)
5 | The answer is **5**!
120 | The answer is 5!
5 | <answer>5</answer>
1,2,3 | The solutions are 1, 2, and 3.
1,2,3 | The solutions are $1$, $2$, and $3$.
(1,2) | The point is (1, 2).
-3 | minus 3
4 | four
4 | Four.
\text{four} | four
\text{Yes} | Yes, it is.
\text{No} | No, it isn't.
\text{odd} | The function is odd.
\text{C} | (C) $12$
5\text{ cm} | 50\text{ mm}
10\text{ minutes} | 600 seconds
2:3 | 2:3
9:30 | 9:30
4:3 | \frac{4}{3}
1101_2 | 1101 base 2
13 | 13_{10}
4 | The number of primes less than $10$ is $4$.
90 | The number of integers up to $100$ that are not squares is $90$.
90 | The number of integers that are not squares is 90.
5 | Since $x$ is not zero, $x = 5$.
5 | Since x is not zero, there are 5 apples.
5 | I would say it is $5$.
5 | x = 5, as required.
5 | The answer is 5, I think.
2\sqrt{3}\text{ cm} | 20\sqrt{3}\text{ mm}
4 | The number of primes less than 10 is 4.
5\text{ cm}^2 | 500\text{ mm}^2
7 | 7 days
7\text{ days} | 1 week
\frac{1}{2} | The probability is 1/2.
\frac{1}{2} | The probability is 50%.
12 | The distance is 12 km/h.
16 | 4² = 16
(2,3) | The vertex is $(2,3)$.
10 | It takes 10 minutes.
10\text{ minutes} | It takes 10 minutes.
10\text{ minutes} | It takes 600 seconds.
25 | 5²
8 | 2^3
5 | 3 + 2 = 5
\text{east} | The direction is east.
\text{Evelyn} | The fastest is Evelyn.
-1 | The minimum is minus 1.
100 | 100 percent
1000 | There are 1,000 people.
5 | The answer is $5$!
5 | $5$ cm
5 | The length is $5$ cm.
17 | $17$ is the smallest such prime.
2x+3 | The function is 2x + 3.
25 | The number is 5^2.
5 | There are 5 paths.
5 | It takes 5 months.
5 | There are 5 red or blue balls.
5 | There are 5 numbers greater than ten.
"""

WRONG = r"""
42 | 43
42 | -42
42 | 4.2
42 | 420
42 | ∅
42 | I do not know
42 | 42 or 43
42 | \boxed{42}, \boxed{43}
42 | First \boxed{42}. No: \boxed{41}
42 | 41 (not 42)
42 | \boxed{}
-7 | 7
1000 | 1
1,234 | 1.234
100 | 100000
\frac{1}{2} | \frac{1}{3}
\frac{1}{2} | 2
\frac{1}{2} | 1, 2
\frac{1}{3} | 0.33
\frac{1}{3} | 0.3
\frac{14}{3} | 4\frac{1}{3}
3.14 | \pi
\pi | 3.14
2\pi | 6.28
10\% | 100
10\% | 0.01
10 | 0.1
0.1 | 10
25\% | 0.025
90^\circ | 180^\circ
5\text{ cm} | 5 m
5\text{ cm} | 5\text{ cm}^2
6\text{ hours} | 6 minutes
5 | 5x
5 | x
\sqrt{2} | 2
\sqrt{2} | 1.41
2\sqrt{3} | 3\sqrt{2}
3+4i | 3-4i
3+4i | 7
x^2-1 | x^2+1
x^2-1 | (x-1)^2
2x+3 | 2x-3
2x+3 | 5
x=3 | y=3
x=3 | x=-3
3 | x > 3
1 | x^2+y^2=1
x^2+y^2=1 | 1
y=2x+3 | y=2x
3 | x=1 or x=3
[2,5) | (2,5)
[2,5) | [2,5]
[2,5) | (2,5]
[2,5) | 2,5
[2,5) | [2,6)
(3,\infty) | x \ge 3
(3,\infty) | [3,\infty)
(-\infty,1)\cup(2,\infty) | (-\infty,1)
(-\infty,1)\cup(2,\infty) | (-\infty,1]\cup[2,\infty)
(1,2) | (2,1)
(1,2) | [1,2]
(1,2) | (1,2,3)
(1,2) | \{1,2\}
(1,2) | 1.2
(1,2) | 12
1, 2 | 1
1, 2 | 1, 3
1, 2 | 1, 2, 3
1, 2 | 1.2
1, 2 | 12
1, 1, 2 | 1, 2, 2
1,-2 | x=1 or x=2
\{1,2\} | \{1\}
\{1,2\} | (1,2)
3 \pm 2\sqrt{2} | 3 + 2\sqrt{2}
\pm 2 | 2
\begin{pmatrix}1&2\\3&4\end{pmatrix} | \begin{pmatrix}1&3\\2&4\end{pmatrix}
\begin{pmatrix}1\\2\end{pmatrix} | \begin{pmatrix}1&2\end{pmatrix}
\begin{pmatrix}1&2\\3&4\end{pmatrix} | 1,2,3,4
\text{E} | A nice day, E
\text{A} | A nice day
\text{B} | A
\text{E} | A
\text{E} | D or E
\text{E} | e^1
\text{Evelyn} | Eve
\text{even} | odd
\text{Yes} | No
\text{east} | west
\text{June 20} | June 2
2516_8 | 2516_9
2516_8 | 1358
1011_2 | 1101
0 | \emptyset
\emptyset | 0
7 | __import__('os').getpid()
7 | 7; import os
5 | 5 because 2+3 = 5
5 | it is not 5
10^{100} | 10^{101}
\frac{5\pi}{3} | 300^\circ
(1,2) | x=1, y=2
i | -i
\text{none} | 0
(0,9) \cup (9,36) | (0,36)
# bounds, doubts, arithmetic beside the number; another sign, unit, exponent, end of an interval
5 | $$⏎6⏎$$
5 | \[⏎x⏎=⏎6⏎\]
5 | The answer is not⏎\[⏎5⏎\]
5 | less than 5
5 | at least 5
5 | at most 5
5 | more than 5
5 | The answer is unlikely to be 5
5 | The answer is 5 more than x
5 | The answer is less than 5.
5 | The answer is less than $5$.
5 | It is at most $5$.
5 | The answer is 5 or more
5 | The answer is the square root of 5
5 | The answer is 5 squared
5 | The answer is twice 5
5 | The answer is negative 5
5 | The answer is 5 million
5 | The answer is 5 sixths
5 | The answer is almost 5
5 | The answer is 5 factorial
5 | The answer might be 5
5 | The answer isn't $5$.
5 | The answer is not $5$.
5 | I do not think that the answer is 5.
5 | I don't think the answer is $5$.
5 | It goes up to 5.
5 | There are 5 apples, not 6
5 | x is a multiple of 5
5 | It is 5 times the radius.
5\text{ cm} | The length is 5 m.
42 | 42.0000001
5 | 4.9999996
5 | 5.0000004
1 | 0.9999999
\frac{1}{3} | 0.3333233
\frac{7}{2} | 3¼
\frac{3}{4} | ¼
4 | 2³
x^2 | x³
36\text{ cm}^2 | 36 cm³
60^\circ | 6∘
3 | －3
\sqrt[3]{4} | √4
1.6 \times 10^{-19} | 1.6 × 10¹⁹
1.6 \times 10^{-19} | 1.6e-18
1.6 \times 10^{-19} | 1.602e-19
\frac{2}{3} | 0.\bar{7}
\frac{2}{3} | 0.6
\emptyset | \{0\}
\begin{pmatrix}1\\2\end{pmatrix} | \begin{pmatrix}2\\[2pt]1\end{pmatrix}
(0,1) | ]0,1]
(0,1) | [0,1[
(-\infty,\infty) | \mathbb{Z}
(0,\infty) | \mathbb{R}
(-\infty,\infty) | \mathbb{R}\setminus\{0\}
x > 5 | [5,\infty)
x > 5 | (-\infty,5)
1 \le x \le 3 | (1,3)
\ln 2 | ln(3)
\ln 2 | log(2)
6\pi | 3*pi
5 | The value of $x$ is not 5.
5 | It is false that the value of $x$ is 5.
5 | The value of $x$ is 5 or 6.
5 | The value of $x$ is 5y.
5 | The value of $5$ is x.
5 | So 5 is not the answer.
5 | I doubt that 5 is the answer.
5 | 5 or 6 is the answer.
5 | #### 6
5 | *5*2*
5 | 5 (six)
6 | $5$ (since $6-1=5$)
5 | The answer is 5!
120 | The answer is **5**!
5 | <answer>5</answer> <answer>4</answer>
1,2,3 | The solutions are 1, 2, and 4.
1,2,3 | The solutions are not 1, 2, and 3.
1,2,3 | The solutions are between 1, 2, and 3.
3 | The solutions are $1$, $2$, and $3$.
3 | The solutions are 1, 2, and 3.
(1,2) | The point is (2, 1).
(1,2) | The point is not (1, 2).
(1,2) | It is not true that the point is (1, 2).
(1,2) | The center is below (1, 2).
3 | minus 3
2 | 5 minus 3
3 | 5 minus 3
4 | five
4 | forty
4 | four or five
\text{Yes} | No, it is.
\text{Yes} | Yes, no.
\text{Yes} | Yes, but only if x > 0.
\text{No} | No, yes.
\text{odd} | The function is not odd.
\text{odd} | The function is even.
\text{odd} | It is false that the function is odd.
\text{odd} | The function is even or odd.
\text{odd} | The function is neither even nor odd.
\text{odd} | The function isn't odd.
\text{C} | (C) or (D)
\text{C} | (C) is wrong
\text{C} | (B) $12$
\text{C} | (C) and (D)
\text{C} | C is nice
5\text{ cm} | 5\text{ mm}
5\text{ cm} | 50 m
5\text{ cm} | 50\text{ mm}^2
10\text{ minutes} | 60 seconds
10\text{ minutes} | 10 seconds
\frac{2}{3} | 2:3
1101_2 | 0b1101
1101_2 | 1101_3
1101_2 | 1_101
13 | 1101_2
21 | The answer is 21 in base 8
5 | There are no solutions other than 5
5 | Neither of them is 5.
5 | None of the two is $5$.
5 | It is $4$ or it is $5$.
5 | I cannot say that it is $5$.
5 | Maybe it is $5$.
5 | x can never be 5.
5 | x is never $5$.
5 | The answer is 6, I think.
2\sqrt{3}\text{ cm} | 2\sqrt{3}\text{ mm}
3 | So $x = 1$ and $y = 3$.
5 | $5$ is wrong.
5 | It is impossible that the result is 5.
5 | There are not 5 apples.
5 | There aren't 5 apples.
5 | No solution is 5.
3 | The answer is 5 when x is 3
3 | 5 because the sum is 3
3 | Nobody thinks 3 is the answer.
3 | The wrong answer is 3.
5\text{ cm}^2 | 50\text{ mm}^2
\text{Yes} | Yes. Wrong.
5 | $x = 5$ or $x = 6$
5 | Either $x=4$ or $x = 5$.
\frac{1}{2} | The odds are 1:2.
0.5 | The probability is about 1 in 2.
12\text{ km} | The distance is 12 km/h.
16 | 4²=15
\pi | The value is π.
(2,3) | The vertex is $(3,2)$.
(2,3) | The vertices are $(2,3)$ and $(3,2)$.
2 | The vertex is (1, 2).
1 | The interval is (0, 1).
10\text{ hours} | It takes 10 minutes.
10 | 10 of the 12
5 | 5².
\text{east} | The direction is not east.
\text{Evelyn} | The fastest isn't Evelyn.
1 | The minimum is minus 1.
1 | The minimum is -1.
100 | one hundred
3 | 3 dozen
3 | There are 3 dozen eggs.
1 | There are 1,000 people.
5\text{ m} | $5$ cm
5\text{ m} | The length is $5$ cm.
17 | $17$ is too large.
17 | $17$ is not prime.
2x+3 | The function is not 2x + 3.
5 | The number is 5 squared.
5 | The number is 5 plus x.
5 | The number is 5x.
5 | The number is 5 + x.
5 | The result is 5 or more.
5 | It takes 5 months or more.
5 | There are 5 more than ten.
5 | It is 5 hundredths.
"""

# Where bare math-verify says otherwise than the table, and why.
OTHERWISE = r"""
\frac{14}{3} | 4 2/3 | reads 42/3
\sqrt{13} | √13 | does not know the sign
(3,\infty) | (3, ∞) | does not know the sign
(-\infty,1)\cup(2,\infty) | (-∞,1) ∪ (2,∞) | does not know the signs
(3,\infty) | x > 3 | holds an inequality for no interval (by default)
[-1,1] | -1 \le x \le 1 | holds an inequality for no interval (by default)
\text{even} | Even. | reads a product of letters
\text{June 20} | June 20 | reads the 20
\text{ellipse} | an answer: ellipse | reads a product of letters
\frac{3}{4} | First \boxed{1}. No, wait: the answer is \boxed{\frac{3}{4}}. | takes both boxes for one answer
42 | 41 (not 42) | tries each number
5\text{ cm} | 5 m | drops units
5\text{ cm} | 5\text{ cm}^2 | drops units
6\text{ hours} | 6 minutes | drops units
5 | 5x | tries the number alone
x=3 | y=3 | drops the name
3 | x > 3 | drops the sign
1 | x^2+y^2=1 | takes the right-hand side
3 | x=1 or x=3 | tries each number
(1,2) | \{1,2\} | holds a set for a pair
1, 1, 2 | 1, 2, 2 | holds lists for sets
\{1,2\} | (1,2) | holds a pair for a set
\text{E} | e^1 | reads the letter as Euler's number
2516_8 | 2516_9 | drops the base
7 | 7; import os | reads the rest as a product of letters, in a list
5 | it is not 5 | tries the number alone
5 | 5 because 2+3 = 5 | takes the right-hand side
(1,2) | x=1, y=2 | drops the names
5 | `5` | does not know the quotes
\frac{\sqrt{2}}{2} | \sin 45^\circ | takes degrees for radians
0.\overline{3} | \frac13 | reads 0
2.5 \times 10^6 | 2.5e6 | reads Euler's number
(-\infty,-3)\cup(3,\infty) | x < -3 or x > 3 | holds inequalities for no union
\text{3:30 p.m.} | 3:30 pm | reads a ratio
-5 | The answer is negative 5 | does not know the word
\frac{7}{2} | 3½ | does not know the sign
\frac{1}{2} | ½ | does not know the sign
\frac{3}{4} | ¾ | does not know the sign
-\frac{1}{2} | -½ | does not know the sign
4 | 2² | does not know the sign
x^2 | x² | does not know the sign
-3 | －3 | does not know the sign
\sqrt[3]{4} | ∛4 | does not know the sign
1.6 \times 10^{-19} | 1.6 × 10⁻¹⁹ | does not know the sign
1.6 \times 10^{-19} | 1.6e-19 | reads Euler's number
\frac{2}{3} | 0.\bar{6} | reads 0
\emptyset | \varnothing | reads a letter
\begin{pmatrix}1\\2\end{pmatrix} | \begin{pmatrix}1\\[2pt]2\end{pmatrix} | reads the distance as an entry
(0,1) | ]0,1[ | does not know the notation
[0,1) | [0,1[ | does not know the notation
(0,1)\cup(2,3) | ]0,1[ \cup ]2,3[ | does not know the notation
\ln 2 | ln(2) | reads a product of letters
6\pi | 6*pi | reads a product of letters
6\pi | 6 pi | reads a product of letters
5 | *5* | does not know the emphasis
5 | _5_ | does not know the emphasis
120 | The answer is 5! | reads the 5
5 | <answer>5</answer> | does not know the tags
1,2,3 | The solutions are 1, 2, and 3. | reads the last number alone
1,2,3 | The solutions are $1$, $2$, and $3$. | reads the last number alone
(1,2) | The point is (1, 2). | reads the last number alone
-3 | minus 3 | does not know the word
4 | four | reads no words
4 | Four. | reads no words
\text{Yes} | Yes, it is. | reads no words
\text{No} | No, it isn't. | reads no words
\text{odd} | The function is odd. | reads no words
\text{C} | (C) $12$ | reads the 12
5\text{ cm} | 50\text{ mm} | drops units
10\text{ minutes} | 600 seconds | drops units
1101_2 | 1101 base 2 | reads the 2
2\sqrt{3}\text{ cm} | 20\sqrt{3}\text{ mm} | drops units
5 | The answer is not⏎\[⏎5⏎\] | tries the number alone
5 | less than 5 | tries the number alone
5 | at least 5 | tries the number alone
5 | at most 5 | tries the number alone
5 | more than 5 | tries the number alone
5 | The answer is unlikely to be 5 | tries the number alone
5 | The answer is 5 more than x | tries the number alone
5 | The answer is less than 5. | tries the number alone
5 | The answer is less than $5$. | tries the number alone
5 | It is at most $5$. | tries the number alone
5 | The answer is 5 or more | tries the number alone
5 | The answer is the square root of 5 | tries the number alone
5 | The answer is 5 squared | tries the number alone
5 | The answer is twice 5 | tries the number alone
5 | The answer is negative 5 | tries the number alone
5 | The answer is 5 million | tries the number alone
5 | The answer is 5 sixths | tries the number alone
5 | The answer is almost 5 | tries the number alone
5 | The answer is 5 factorial | tries the number alone
5 | The answer might be 5 | tries the number alone
5 | The answer isn't $5$. | tries the number alone
5 | The answer is not $5$. | tries the number alone
5 | I do not think that the answer is 5. | tries the number alone
5 | I don't think the answer is $5$. | tries the number alone
5 | It goes up to 5. | tries the number alone
5 | x is a multiple of 5 | tries the number alone
5 | It is 5 times the radius. | tries the number alone
5\text{ cm} | The length is 5 m. | drops units
36\text{ cm}^2 | 36 cm³ | drops units
5 | The value of $x$ is not 5. | tries the number alone
5 | It is false that the value of $x$ is 5. | tries the number alone
5 | The value of $x$ is 5y. | tries the number alone
5 | The value of $5$ is x. | tries the number alone
5 | So 5 is not the answer. | tries the number alone
5 | I doubt that 5 is the answer. | tries the number alone
5 | 5 (six) | tries the number alone
5 | The answer is 5! | reads the 5
3 | The solutions are $1$, $2$, and $3$. | takes the last of them alone
3 | The solutions are 1, 2, and 3. | takes the last of them alone
3 | minus 3 | tries the number alone
3 | 5 minus 3 | tries the number alone
5\text{ cm} | 5\text{ mm} | drops units
10\text{ minutes} | 10 seconds | drops units
\frac{2}{3} | 2:3 | divides
1101_2 | 1101_3 | drops the base
21 | The answer is 21 in base 8 | drops the base
5 | There are no solutions other than 5 | tries the number alone
5 | Neither of them is 5. | tries the number alone
5 | None of the two is $5$. | tries the number alone
5 | It is $4$ or it is $5$. | takes the last of them alone
5 | I cannot say that it is $5$. | tries the number alone
5 | Maybe it is $5$. | tries the number alone
5 | x can never be 5. | tries the number alone
5 | x is never $5$. | tries the number alone
2\sqrt{3}\text{ cm} | 2\sqrt{3}\text{ mm} | drops units
3 | So $x = 1$ and $y = 3$. | takes the last of them alone
5 | $5$ is wrong. | tries the number alone
5 | It is impossible that the result is 5. | tries the number alone
5 | There are not 5 apples. | tries the number alone
5 | There aren't 5 apples. | tries the number alone
5 | No solution is 5. | tries the number alone
5\text{ cm}^2 | 500\text{ mm}^2 | drops units
7\text{ days} | 1 week | drops units
10\text{ minutes} | It takes 600 seconds. | drops units
25 | 5² | does not know the sign
\text{east} | The direction is east. | reads no words
\text{Evelyn} | The fastest is Evelyn. | reads no words
-1 | The minimum is minus 1. | does not know the word
2x+3 | The function is 2x + 3. | reads the last number alone
3 | 5 because the sum is 3 | tries the number alone
3 | Nobody thinks 3 is the answer. | tries the number alone
3 | The wrong answer is 3. | tries the number alone
5 | Either $x=4$ or $x = 5$. | takes the last of them alone
12\text{ km} | The distance is 12 km/h. | drops units
2 | The vertex is (1, 2). | takes the last of them alone
1 | The interval is (0, 1). | takes the last of them alone
10\text{ hours} | It takes 10 minutes. | drops units
5 | 5². | does not know the sign
1 | The minimum is minus 1. | does not know the word
3 | 3 dozen | tries the number alone
3 | There are 3 dozen eggs. | tries the number alone
5\text{ m} | $5$ cm | drops units
5\text{ m} | The length is $5$ cm. | drops units
17 | $17$ is too large. | tries the number alone
17 | $17$ is not prime. | tries the number alone
5 | The number is 5 squared. | tries the number alone
5 | The number is 5 plus x. | tries the number alone
5 | The number is 5x. | tries the number alone
5 | The number is 5 + x. | tries the number alone
5 | The result is 5 or more. | tries the number alone
5 | It takes 5 months or more. | tries the number alone
5 | There are 5 more than ten. | tries the number alone
5 | It is 5 hundredths. | tries the number alone
"""


def cases(table: str) -> list[tuple[str, str]]:
    """(gold, answer) of each line; ⏎ stands for a line break, ∅ for nothing."""
    rows = [line.split(" | ") for line in table.splitlines() if line and not line.startswith("#")]
    return [(gold.strip(), answer.strip().replace("⏎", "\n").replace("∅", "")) for gold, answer in rows]


ALL = [(g, a, True) for g, a in cases(RIGHT)] + [(g, a, False) for g, a in cases(WRONG)]


def told(verdicts: list[tuple[str, str, bool, bool | None]]) -> str:
    return "\n".join(f"{g} | {a!r}: {got}, not {wanted}" for g, a, wanted, got in verdicts if got is not wanted)


def test_the_table():
    assert len(ALL) > 250 and len({(g, a) for g, a, _ in ALL}) == len(ALL)
    wrong = told([(g, a, wanted, grade_math(g, a)) for g, a, wanted in ALL])
    assert not wrong, wrong


def test_every_gold_answer_is_right_in_every_wrapping():
    golds = dict.fromkeys(g for g, _, _ in ALL)
    wraps = ("{}", "${}$", r"\boxed{{{}}}", r"The answer is $\boxed{{{}}}$.", "So we are done.\n**Answer:** ${}$")
    wrong = told(
        [(g, w, True, grade_math(g, w.format(g))) for g in golds for w in wraps if "$" not in g + w or "\\$" not in g]
    )
    assert not wrong, wrong


def test_where_bare_math_verify_says_otherwise():
    """So that a new release that mends one is noticed; all are asked, if TRINITY_MINI_THOROUGH is set."""
    from math_verify import parse, verify

    def bare(gold: str, answer: str) -> bool:
        wanted = parse(f"${gold}$", parsing_timeout=None)
        readings = {answer, f"${answer}$"}
        return any(verify(wanted, parse(t, parsing_timeout=None), timeout_seconds=None) for t in readings)

    listed = {tuple(line.replace("⏎", "\n").split(" | ")[:2]) for line in OTHERWISE.strip().splitlines()}
    step = 1 if os.environ.get("TRINITY_MINI_THOROUGH") else 5
    asked = [case for i, case in enumerate(ALL) if i % step == 0 or case[:2] in listed]
    found = {(g, a) for g, a, wanted in asked if bare(g, a) is not wanted}
    assert found == listed


def test_nothing_is_left_ungraded_without_need_and_something_with():
    assert grade_math("", "5") is None
    assert grade_math("5", None) is False
    assert grade_math("5", "1+" * 5000 + "1") is False  # too long to be an answer
    assert grade_math(r"\foo{}<>&", "5") is None  # a gold answer that nobody can read


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        (r"\boxed{\frac{1}{2}} or rather \boxed{\{1, 2\}}", [r"\{1, 2\}"]),
        (r"\boxed{1}, \boxed{2}", ["1, 2"]),
        (r"\boxed{1", [r"\boxed{1"]),
        ("", [""]),
        ("We add.\n\nThe answer is 5.\nGoodbye", ["5."]),
        ("first\nlast", ["last"]),
        (r"it is $x^2$", ["x^2"]),
    ],
)
def test_where_the_answer_stands(text, answers):
    assert final_answers(text) == answers


def test_numbers_are_read_as_python_reads_them():
    import random

    rng = random.Random(0)
    for _ in range(300):
        above, below, whole = rng.randint(-99, 99), rng.randint(1, 99), rng.randint(1, 9)
        fraction, decimal = Fraction(above, below), f"{rng.uniform(-1e5, 1e5):,.{rng.randint(0, 4)}f}"
        assert number(f"{above}/{below}") == number(rf"\frac{{{above}}}{{{below}}}") == fraction
        assert number(decimal) == Fraction(decimal.replace(",", ""))
        assert number(f"-{whole} {abs(above)}/{below}") == -(whole + abs(fraction))
    for text in ("1,23", "1,2345", "a", "1/0", r"\frac{1}{0}", "--1", "1.2.3", "", "1 2", "½x", "٣x"):
        assert number(text) is None, text


# ---- the processes -----------------------------------------------------------------------------------------


@pytest.fixture
def checker():
    checker = Checker(seconds=1.5)
    yield checker
    checker.close()


def test_the_limit_holds_and_the_next_is_graded(checker):
    assert checker.equal("5", "2+3") is True
    start = time.monotonic()
    assert checker.equal("5", "9^{9^{9^{9}}}") is None
    assert time.monotonic() - start < 4 * checker.seconds + 2
    assert checker.equal("5", "2+3") is True


def test_memory_is_bounded():
    if sys.platform != "linux":
        pytest.skip("no such limit here")
    checker = Checker(megabytes=700)
    assert checker.equal("5", "2+3") is True
    with open(f"/proc/{checker.idle[0].pid}/limits", encoding="utf-8") as f:
        limits = {line[:26].strip(): line[26:].split()[0] for line in f}
    assert limits["Max address space"] == str(700 << 20)
    checker.close()


def test_a_killed_process_costs_nothing(checker):
    assert checker.equal("5", "2+3") is True
    checker.idle[0].kill()
    checker.idle[0].wait()
    assert checker.equal("5", "2+3") is True


def test_threads_get_what_one_gets(checker):
    """Bare math-verify raises in threads."""
    asked = [("x^2-1", "(x-1)(x+1)"), ("x^2-1", "(x-1)^2"), (r"\sqrt{8}", r"2\sqrt{2}"), ("2x", "3x")] * 6
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        verdicts = list(threads.map(lambda pair: checker.equal(*pair), asked))
    assert verdicts == [True, False, True, False] * 6
    assert 1 <= len(checker.idle) <= 3


def test_the_process_ends_with_its_parent_even_in_the_middle(tmp_path):
    if not os.path.isdir("/proc"):
        pytest.skip("needs /proc")
    code = (
        "import os, threading, time\n"
        "from trinity_mini.math_checker import Checker\n"
        "c = Checker(seconds=1.0)\n"
        "c.equal('1', '1+0'); print(c.idle[0].pid, flush=True)\n"
        "threading.Thread(target=c.equal, args=('5', '9^{9^{9^{9}}}'), daemon=True).start()\n"
        "time.sleep(0.2); os.kill(os.getpid(), 9)\n"
    )
    parent = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    child = int(parent.stdout)
    end = time.monotonic() + 15

    def alive() -> bool:
        try:
            with open(f"/proc/{child}/stat", encoding="utf-8") as f:
                return f.read().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    while alive() and time.monotonic() < end:
        time.sleep(0.1)
    assert not alive()


def test_no_key_reaches_the_process(checker, monkeypatch):
    if not os.path.isdir("/proc"):
        pytest.skip("needs /proc")
    monkeypatch.setenv("SOME_API_KEY", "canary")
    assert checker.equal("5", "2+3") is True
    with open(f"/proc/{checker.idle[0].pid}/environ", "rb") as f:
        assert b"canary" not in f.read()


def test_without_math_verify_the_remedy_is_named(checker, tmp_path, monkeypatch):
    (tmp_path / "math_verify.py").write_text("raise ImportError", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UserError, match=r"pip install -e \.\[llm\]"):
        checker.equal("x", "x+0")
    assert grade_math("5", "5.0") is True  # what needs no algebra needs no math-verify


def test_the_module_imports_nothing_heavy():
    heavy = "{'sympy', 'math_verify', 'datasets', 'torch', 'litellm'}"
    code = f"import sys, trinity_mini.math_grader, trinity_mini.benchmarks; print({heavy} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert out.stdout.strip() == "set()"


def test_the_shared_checker_is_kept(monkeypatch):
    grade_math("x^2-1", "(x-1)(x+1)")
    first = math_grader.CHECKER.idle[-1].pid
    grade_math("x^2-1", "(x+1)(x-1)")
    assert math_grader.CHECKER.idle[-1].pid == first


# ---- what algebra is spared -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    ["{" * 390, "(" * 390, r"\frac{1}{" * 40, r"\frac{1}{" * 30 + "1" + "}" * 30, "9^{9^{9^{9}}}", "9^9^9",
     "9^{(9^{9})}", "10^{1000000000}", "999999999!", "9!!!", "((9!)!)!", "}{", "1" * 390],
)  # fmt: skip
def test_monsters_are_wrong_at_once(answer, monkeypatch):
    checker = Checker()
    monkeypatch.setattr(math_grader, "CHECKER", checker)
    for gold in ("5", "(1,2)", r"\frac12", "A", "12_{8}"):
        assert grade_math(gold, answer) is False
    assert grade_math(answer, answer) is True  # as it is spelt
    assert grade_math("12_{8}", "5_{" + "9" * 30 + "}") is False  # such a base overflows
    assert len(checker.idle) <= 1 and grade_math("9^{9^{9}}", "5") is None
    checker.close()


@pytest.mark.parametrize(
    ("gold", "answer"),
    [("65536", "2^{2^{2^2}}"), ("10^{60}", "(10^{10})^{6}"), (r"\frac{128}{125000}", r"\frac{2^{10}}{1000000}"),
     ("5", "((((5))))"), ("x^8", "x^{2^{3}}"), ("120", "5!"), (r"\{1,2\}", r"\{2, 1\}")],
)  # fmt: skip
def test_powers_and_brackets_of_a_usual_size_are_not(gold, answer):
    assert grade_math(gold, answer) is True


class Slow:
    """A checker whose questions take so many seconds each."""

    def __init__(self, spent, verdict=False):
        self.seconds, self.spent, self.verdict, self.asked = 5.0, spent, verdict, []

    def timed(self, gold, answer, seconds):
        self.asked.append(seconds)
        return (None, seconds) if self.spent >= seconds else (self.verdict, self.spent)


@pytest.mark.parametrize(("spent", "asked"), [(5.0, 1), (4.0, 3), (0.1, 100)])
def test_a_list_has_one_budget(spent, asked, monkeypatch):
    """Not one for each of the n^2 pairs: the first that takes too long is the last, and all together have `BUDGET`."""
    monkeypatch.setattr(math_grader, "CHECKER", slow := Slow(spent))
    gold, answer = (",".join(f"{f}(x+{i})" for i in range(20)) for f in ("a", "b"))
    assert grade_math(gold, answer) is (False if spent < 1 else None)
    assert len(slow.asked) <= asked and slow.asked[0] == math_grader.BUDGET
    monkeypatch.setattr(math_grader, "CHECKER", Slow(5.0))
    assert grade_math("1,2", "3,x") is False  # what reading decides needs no budget


def test_a_slow_question_stops_the_rest(monkeypatch):
    checker = Checker(seconds=1.0)
    monkeypatch.setattr(math_grader, "CHECKER", checker)
    integral = r"\int_0^1 e^{x^3}\ln(x^2+1) dx"
    start = time.monotonic()
    assert grade_math("1,2,3,4", ",".join([integral] * 4)) is None
    assert time.monotonic() - start < 4 * checker.seconds + 60  # the start of the process on a busy machine included
    assert checker.timed("5", "2+3", 1.0)[0] is True and checker.timed("5", "2+3", 1.0)[1] < 1
    checker.close()


def test_a_reply_cut_off_in_the_middle_is_no_verdict(monkeypatch):
    checker = Checker()
    monkeypatch.setattr(math_grader.CHECKER.__class__, "_start", lambda self: subprocess.Popen(
        [sys.executable, "-c", "input(); print('tr', end='')"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ))  # fmt: skip
    assert checker.equal("5", "2+3") is None and not checker.idle
