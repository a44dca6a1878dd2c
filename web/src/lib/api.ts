/**
 * The server, as the page sees it, or the report that stands in for one. Law: every request goes through `call`, which
 * brings the key and turns what went wrong into an `ApiError` that says what to do.
 */
import { recorded, report } from "./report";

export interface Model {
  name: string; family: string; version: string; device: string; threads: number;
  n_layers: number; n_heads: number; n_kv_heads: number; d_head: number; d_model: number; d_ff: number; vocab: number;
  activation: string; gated: boolean; tied: boolean; windows: number[]; rotates: boolean;
  experts: number; experts_per_token: number; trained_context: number; context: number;
  kv_format: string; kv_bytes_per_token: number; page_size: number;
  parameters: number; weight_bytes: number; weight_format: string; chat: boolean;
}

export interface Token {
  pos: number; id: number | null; text: string; part: "prompt" | "answer";
  logprob: number | null; rank: number | null; entropy: number | null;
}

export interface Norms { attn: number[][]; mlp: number[][]; resid: number[][] }

export interface Trace { id: string; model: string; seed: number; delta: number | null; tokens: Token[]; redacted: boolean; norms?: Norms }

export type Pair = [id: number, value: number];
export interface Stage { name: string; changed: boolean; kept: number; removed: number; mass_removed: number; cut: Pair | null; top: Pair[] }
export interface Funnel {
  position: number; token: number; chosen: number; raw: Pair[]; chosen_probability: number; chosen_rank: number;
  stages: Stage[]; random: number | null; cdf: { token: number; low: number; high: number }[];
  counterfactuals: [string, number][];
}
export type Texts = Record<string, string>;
export interface Why { funnel: Funnel; replays: boolean; texts: Texts }
export interface Lens { layers: number[]; positions: number[]; targets: number[]; top: Pair[][][]; logprobs: number[][]; ranks: number[][]; entropies: number[][]; texts: Texts }
export interface Heads { metrics: string[]; values: Record<string, number[][]>; kv_heads: number }
export interface Row { pos: number; layer: number; head: number; weights: number[]; sink: number }
export interface Embedding { pos: number; norm: number; near: Pair[]; kinds: number[]; places: [number, number][]; texts: Texts }
export interface Rotation { base: number; dims: number; wavelengths: number[]; distances: number[]; angles: number[][]; mean_cosine: number[]; trained_context: number }
export interface Attribution { token: number; logit: number; parts: [string, number][]; heads: number[][] | null; remainder: number }
export interface Neuron { layer: number; neuron: number; activation: number }
export interface Influence { spans: { first: number; end: number; text: string }[]; changes: number[]; baseline?: number }
export interface Comparison { kl: number[]; flips: number[]; first_divergence: number | null }
export interface Run { page: number; count: number; state: "free" | "cached" | "held"; request: number | null; refs: number; age: number; prefix: string | null }
export interface KVMap {
  page_count: number; page_size: number; free: number; cached: number; held: number; shared: number; evictions: number;
  requests: { id: string; tenant: string; tokens: number; computed: number; pages: number; shared: number }[];
  runs: Run[]; left_out: number;
}
export interface Step {
  step: number; at: number; seconds: number; parts: Record<string, number>; rows: number; prefill_rows: number; decode_rows: number;
  tokens: number; sequences: number; largest: string; running: number; waiting: number; blocked: string; pages_used: number; preemptions: number;
}
export interface Tile { rows: number; columns: number; cells: Uint8Array; scale: number }

export interface Settings {
  chat: boolean; system: string; prompt: string; max_tokens: number;
  temperature: number; top_k: number; top_p: number; min_p: number; seed: number | null;
}

export class ApiError extends Error {
  constructor(readonly status: number, message: string) { super(message); }
}

let key = sessionStorage.getItem("pellucid-key") ?? "";

/** Keep the key for this tab; it is sent to this server alone. */
export function useKey(text: string): void {
  key = text.trim();
  if (key) sessionStorage.setItem("pellucid-key", key); else sessionStorage.removeItem("pellucid-key");
}

export async function call(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (key) headers.set("authorization", `Bearer ${key}`);
  let response: Response;
  try {
    response = report ? await recorded(path, init.method) : await fetch(path, { ...init, headers });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new ApiError(0, "The server does not answer. Is it still running? The page goes on as soon as it is back.");
  }
  if (!response.ok) {
    const body = await response.json().catch(() => null);
    throw new ApiError(response.status, body?.error?.message ?? `The server answered ${response.status}`);
  }
  return response;
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await call(path, { signal })).json();
}

export async function post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  const init = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal };
  return (await call(path, init)).json();
}

export function query(values: Record<string, number | string | null | undefined>): string {
  const given = Object.entries(values).filter(([, v]) => v !== null && v !== undefined && v !== "");
  return given.length ? "?" + new URLSearchParams(given.map(([k, v]) => [k, String(v)])) : "";
}

/** The data of each server-sent event of a response, as it comes. */
export async function* events(response: Response): AsyncGenerator<{ event: string; data: string; id: string }> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop()!;
    for (const part of parts) {
      const found = { event: "message", data: "", id: "" };
      for (const line of part.split("\n")) {
        const at = line.indexOf(":");
        const name = at < 0 ? line : line.slice(0, at);
        const text = at < 0 ? "" : line.slice(at + 1).replace(/^ /, "");
        if (name === "data") found.data += (found.data && "\n") + text;
        else if (name === "event") found.event = text;
        else if (name === "id") found.id = text;
      }
      if (found.data) yield found;
    }
  }
}

/** What is sent to /v1 for these settings, and where. */
export function generation(s: Settings, model: string): { path: string; body: Record<string, unknown> } {
  const sampling = {
    model, max_tokens: s.max_tokens, temperature: s.temperature,
    ...(s.top_k > 0 && { top_k: s.top_k }), ...(s.top_p < 1 && { top_p: s.top_p }), ...(s.min_p > 0 && { min_p: s.min_p }),
    ...(s.seed !== null && { seed: s.seed }),
  };
  return s.chat
    ? { path: "/v1/chat/completions", body: { ...sampling, messages: conversation(s) } }
    : { path: "/v1/completions", body: { ...sampling, prompt: s.prompt } };
}

export function conversation(s: Settings): { role: string; content: string }[] {
  return [...(s.system ? [{ role: "system", content: s.system }] : []), { role: "user", content: s.prompt }];
}

/** The body of /inspect/replay that answers the same prompt in the same way, and looks into it. */
export function looking(s: Settings, model: string): Record<string, unknown> {
  const { max_tokens, temperature, top_k, top_p, min_p, seed } = s;
  const what = s.chat ? { messages: conversation(s) } : { prompt: s.prompt };
  return { model, ...what, max_tokens, temperature, top_k, top_p, min_p, seed, level: "summary" };
}

export async function tile(id: string, layer: number, head: number, z: number, x: number, y: number, signal?: AbortSignal): Promise<Tile> {
  const response = await call(`/inspect/requests/${id}/attn/tile${query({ layer, head, z, x, y })}`, { signal });
  return {
    rows: Number(response.headers.get("x-rows")), columns: Number(response.headers.get("x-columns")),
    scale: Number(response.headers.get("x-scale")), cells: new Uint8Array(await response.arrayBuffer()),
  };
}
