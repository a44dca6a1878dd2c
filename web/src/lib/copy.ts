/** The view at the cursor, as Python and as curl. Law: what is copied runs as it stands. */
import type { Trace } from "./api";
import type { Cursor } from "./cursor";

export function commands(c: Cursor, trace: Trace): { python: string; curl: string } {
  const ids = trace.tokens.map((t) => t.id);
  const url = `${location.origin}/inspect/requests/${trace.id}`;
  const [look, path] = {
    request: ["print(trace.summary()['tokens'][POS])", "tokens"],
    attention: [`print(trace.attention(layer=${c.layer}, heads=${c.head}, pos=POS)[0, 0])`, `attn/row?layer=${c.layer}&head=${c.head}&pos=${c.pos}`],
    layers: ["lens = trace.logit_lens(pos=POS, top_k=5)\nprint(lens.ranks[:, 0])", `lens?pos=${c.pos}&top=5`],
    sampling: ["print(trace.why(POS))", `logits?pos=${c.pos}`],
    cache: ["print(llm.engine.stats)", ""], engine: ["print(llm.engine.stats)", ""],
    compare: ["print(trace.surprises())", "tokens"],
  }[c.view];
  const python = [
    "from pellucid import LLM, SamplingParams", "", `llm = LLM(${JSON.stringify(trace.model)})`,
    `trace = llm.inspect(${JSON.stringify(ids)}, SamplingParams(max_tokens=0))`, look.replaceAll("POS", String(c.pos)), "",
  ].join("\n");
  const where = c.view === "cache" ? `${location.origin}/inspect/kv` : c.view === "engine" ? `${location.origin}/inspect/engine/events` : `${url}/${path}`;
  return { python, curl: `curl -s '${where}'` };
}
