"""What a form costs: time a token with and without a JSON schema, at one stream and at many, A B A B.

    python benchmarks/structured.py [MODEL] [--streams 1 16] [--tokens 96] [--repeat 5] [--threads N]

Prints the ratio of medians; at most 1.10 is aimed at. Both sides draw as many tokens: the schema asks for a long
answer.
"""

from __future__ import annotations

import argparse
import statistics
import time

from pellucid import LLM, Grammar, SamplingParams

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 3, "maxLength": 40},
        "email": {"type": "string", "pattern": r"^[a-z]{3,12}@[a-z]{3,12}\.(com|org)$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 2, "maxItems": 5},
    },
    "required": ["name", "email", "age", "tags"],
    "additionalProperties": False,
}
PEOPLE = {"type": "array", "items": PERSON, "minItems": 50, "maxItems": 60}


def milliseconds_a_token(llm: LLM, streams: int, tokens: int, grammar: Grammar | None, round: int) -> float:
    """Milliseconds a token of each stream, the prompts' own step left out."""
    prompts = [f"List of people, part {round * streams + i}, as JSON:\n" for i in range(streams)]
    params = SamplingParams(temperature=0.8, seed=round, max_tokens=tokens, grammar=grammar, ignore_eos=grammar is None)
    times: list[float] = []
    for chunk in llm.stream(prompts[0], params) if streams == 1 else ():
        times.append(time.perf_counter())
        del chunk
    if streams == 1:
        return (times[-1] - times[0]) / (len(times) - 1) * 1e3
    began = time.perf_counter()
    results = llm.generate(prompts, params, progress=False)
    count = max(len(result.outputs[0].token_ids) for result in results)
    return (time.perf_counter() - began) / count * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 16])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    grammar = Grammar.json_schema(PEOPLE)
    with LLM(args.model, ctx=1024, threads=args.threads) as llm:
        milliseconds_a_token(llm, 1, 8, grammar, 0)
        for streams in args.streams:
            plain: list[float] = []
            formed: list[float] = []
            for round in range(1, args.repeat + 1):
                plain.append(milliseconds_a_token(llm, streams, args.tokens, None, round))
                formed.append(milliseconds_a_token(llm, streams, args.tokens, grammar, round))
            a, b = statistics.median(plain), statistics.median(formed)
            print(f"{streams:3} streams: {a:.2f} ms a token without, {b:.2f} with a schema: {b / a:.3f} x")


if __name__ == "__main__":
    main()
