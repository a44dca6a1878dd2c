"""The adversarial corpus: texts on which tokenizers differ. Law: pure and fixed, for goldens are made from it."""

from __future__ import annotations

import random

CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<unk>"]

SHORT = [
    "",
    " ",
    "  ",
    "\n",
    "\0",
    "a\0b\0\0c",
    "Hello, world!",
    "  leading and trailing  ",
    "don't can't WE'LL I'M he'd'll 'tis",
    "tab\tTab\t\tTAB\t\t\t\t",
    "line\nline\r\nline\rline\n\n\r\n\r\n\n \n \r\n  x",
    "\n\n\n\n text \n\n\n",
    "1234567890 3.14159 1,000,000 0x1F 1e-9 ٣٤٥ ²³ Ⅷ ½ ४५६",
    "a1b22c333d4444",
    "naïve café résumé",
    "nai\u0308ve cafe\u0301 re\u0301sume\u0301",
    "A\u030a\u0323\u0301\u0302\u0303 combining\u0489 marks\u20dd",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!͖̬̰̙̗̿̋ͥͥ̂ͣ̐́́͜͞",
    "😀 😃😄 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 ✊🏿 ❤️‍🔥 1️⃣",
    "\u200d\u200d\u200c\ufeff\u00ad\u2060\u200b",
    "שלום עולם מה שלומך",
    "السلام عليكم ورحمة الله \u202eabc\u202c",
    "你好，世界。これは日本語のテキストです。한국어도 있습니다。",
    "𠀀𠀁𪚥 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝒳 🜚",
    "Ελληνικά Русский українська ქართული हिन्दी ไทย தமிழ் አማርኛ",
    "ﬁ ﬂ ﷺ ①②③ ＡＢＣ ｶﾀｶﾅ Å K Ω",
    "\u00a0nbsp\u2003em\u3000ideographic\u2028ls\u2029ps\u0085nel\u000b\u000c",
    "\u001b[31mred\u001b[0m \u0007\u0008\u007f",
    "\ufffd \ufffe \uffff \U0010ffff \ue000",
    "▁under▁▁line ▁ \u2581\u2581\u2581 x",
    "Ġ Ċ ĉ Ã© â",
    "<0x41><0x0A> <0xFF>",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "<bos><start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n",
    "<|im_start|><|im_start|> <|endoftext|>x<|endoftext|",
    "<|im_start <|im_end |> <bo s> <bos <eos>> <<bos>>",
    '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
    "<table><tr><td>1</td></tr></table> <h1>T</h1> <b>x</b> <unused3> [multimodal] <mask> <pad> <unk>",
    "<s>[INST] hi [/INST]</s> <|fim_prefix|>a<|fim_suffix|>b<|fim_middle|> <repo_name>x<file_sep>y",
    "def f(x):\n    return {k: v for k, v in x.items() if v != 0}  # done\n\n\nclass A:\n\tpass\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * c[i]; }\r\n#include <vector>\r\n",
    "SELECT * FROM t WHERE a=1 AND b<>'x''y'; -- c\n",
    "https://example.com/a?b=c&d=%20e#f user@example.org C:\\Users\\x\\y.txt",
    "$$\\int_0^\\infty e^{-x^2}\\,dx = \\frac{\\sqrt{\\pi}}{2}$$",
    "!!!???...---___===+++***///\\\\\\|||~~~```'''\"\"\"",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "aAaAaAbBbBcC iPhone OpenAI HTMLParser camelCaseWord SCREAMING_SNAKE",
    "Donaudampfschifffahrtsgesellschaftskapitän Llanfairpwllgwyngyll",
    "   x    y     z" + " " * 40 + "end" + " " * 33,
    "\t" * 35 + "x" + "\n" * 35 + "y",
    "e" + "\u0301" * 40 + "x",
    "\r\r\r\n\n\n\r\n\r\n",
    " \n \n\n  \n   \n",
    "x \u3000 y\u2003\u2003z \n\u00a0\n",
]

LONG = [
    " " * 10_000,
    "x" + " " * 10_000 + "y",
    "a" * 5_000,
    "7" * 4_000,
    "\n" * 3_000,
    "😀" * 1_500,
    "é" * 3_000,
    "ab " * 2_000,
    "\r\n" * 2_000,
    "中文" * 2_000,
]

_RANGES = [
    (0x20, 0x7E), (0x20, 0x7E), (0x20, 0x7E), (0x00, 0x1F), (0xA0, 0x2FF), (0x300, 0x36F), (0x370, 0x5FF),
    (0x600, 0x6FF), (0x900, 0xDFF), (0x1100, 0x11FF), (0x2000, 0x206F), (0x2190, 0x2BFF), (0x3040, 0x30FF),
    (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xE000, 0xE0FF), (0xFE00, 0xFFFF), (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF),
]  # fmt: skip
_WORDS = ["the", " of", "return", "ing ", "  ", "\n", "\r\n", "\t", "'s", "1", "23", "ß", "ı", "ſ", *CONTROL]


def random_texts(count: int = 160, seed: int = 7) -> list[str]:
    """Texts of characters from everywhere, with words, digits and control tokens' spellings among them."""
    draw = random.Random(seed)
    texts: list[str] = []
    for _ in range(count):
        parts: list[str] = []
        for _ in range(draw.randrange(1, 24)):
            if draw.random() < 0.4:
                parts.append(draw.choice(_WORDS))
            else:
                low, high = draw.choice(_RANGES)
                parts.append("".join(chr(draw.randint(low, high)) for _ in range(draw.randrange(1, 6))))
        texts.append("".join(parts))
    return texts


def corpus() -> list[str]:
    """All texts, in the order in which the goldens hold them."""
    return [*SHORT, *LONG, *random_texts()]
