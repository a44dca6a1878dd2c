/**
 * What the page looks at: one model, one trace, one cursor. Law: the cursor lives in the URL, so a link opens the same view;
 * views read it and move it, and keep nothing of it themselves.
 */
import { untrack } from "svelte";
import { ApiError, get, query, type Model, type Settings, type Trace } from "./api";
import { cursorOf, hashOf, type Cursor, type View } from "./cursor";
import { ID, report } from "./report";

export const cursor = $state<Cursor>(cursorOf(location.hash));
/** What is replaced as a whole is not looked into for changes: a long sequence has thousands of tokens. */
class Page {
  model = $state.raw<Model | null>(null);
  trace = $state.raw<Trace | null>(null);
  /** A trace made before this one, to compare with. */
  before = $state.raw<Trace | null>(null);
  /** Why there is nothing to see; "": all is well. */
  fault = $state("");
  needsKey = $state(false);
  help = $state(false);
  hideSink = $state(false);
  colouring = $state<"surprisal" | "part" | "attention">("surprisal");
  /** Weights of the row that a view shows, to colour the spine by. */
  weights = $state.raw<number[] | null>(null);
  /** Seconds since the request was sent at which each piece of the answer came. */
  arrivals = $state<number[]>(report?.arrivals ?? []);
}

export const page = new Page();

export const settings = $state<Settings>({
  chat: true, system: "", prompt: "", max_tokens: 64, temperature: 0.8, top_k: 0, top_p: 1, min_p: 0, seed: 7,
});

export function go(view: View): void { cursor.view = view; }

export function moveTo(pos: number): void {
  const n = page.trace?.tokens.length ?? 0;
  if (n) cursor.pos = Math.min(Math.max(pos, 0), n - 1);
}

export function show(trace: Trace): void {
  page.before = page.trace && page.trace.id !== trace.id ? page.trace : page.before;
  page.trace = trace;
  page.weights = null;
  cursor.id = trace.id;
  cursor.pos = Math.min(trace.tokens.findIndex((t) => t.part === "answer") >>> 0, trace.tokens.length - 1);
  if (page.model) {
    cursor.layer = Math.min(cursor.layer, page.model.n_layers - 1);
    cursor.head = Math.min(cursor.head, page.model.n_heads - 1);
  }
}

/** Ask for the model, and for the trace of the URL; again every few seconds while the server does not answer. */
export async function connect(): Promise<void> {
  try {
    page.model = await get<Model>("/inspect/model");
    page.fault = "";
    page.needsKey = false;
    settings.chat = page.model.chat;
  } catch (error) {
    const known = error instanceof ApiError ? error : new ApiError(0, String(error));
    page.needsKey = known.status === 401 || known.status === 403;
    page.fault = known.status === 404 ? "This server does not let anyone look inside: it was started without /inspect." : known.message;
    if (known.status === 0 || known.status === 503) setTimeout(connect, 2000);
    return;
  }
  if (report && !cursor.id) {
    show({ ...(await get<Trace>(`/inspect/requests/${ID}/tokens`)), id: ID });
    [cursor.layer, cursor.head] = report.heads.find(([l, h]) => l === cursor.layer && h === cursor.head) ?? report.heads[0] ?? [0, 0];
    if (report.first) cursor.form = "rows"; // a matrix of the last rows alone shows little
  } else if (cursor.id && !page.trace) {
    const { id, pos } = cursor;
    try {
      const trace = await get<Trace>(`/inspect/requests/${id}/tokens`);
      page.trace = { ...trace, id };
      moveTo(pos);
    } catch { cursor.id = ""; }
  }
}

/** Keep the URL and the cursor the same. Called once, by App. */
export function followUrl(): () => void {
  const read = () => Object.assign(cursor, cursorOf(location.hash));
  addEventListener("hashchange", read);
  $effect(() => {
    const hash = hashOf(cursor);
    // A held-down key changes it once: browsers refuse a page that rewrites its URL too often.
    const timer = setTimeout(() => { if (hash !== location.hash) history.replaceState(null, "", hash); }, 100);
    return () => clearTimeout(timer);
  });
  return () => removeEventListener("hashchange", read);
}

export interface Loaded<T> { data: T | null; error: string; busy: boolean }

class Found<T> implements Loaded<T> {
  data = $state.raw<T | null>(null);
  error = $state("");
  busy = $state(false);
}

/** What a path gives, asked for anew when the path changes; null asks for nothing. Old data stays until new comes. */
export function load<T>(path: () => string | null, every = 0): Loaded<T> {
  const found = new Found<T>();
  $effect(() => {
    const wanted = path();
    if (wanted === null) { untrack(() => { found.data = null; found.error = ""; }); return; }
    const stop = new AbortController();
    let timer = 0;
    const ask = async () => {
      found.busy = true;
      try {
        found.data = await get<T>(wanted, stop.signal);
        found.error = "";
      } catch (error) {
        if (stop.signal.aborted) return;
        found.error = error instanceof Error ? error.message : String(error);
      }
      found.busy = false;
      if (every && !stop.signal.aborted) timer = window.setTimeout(ask, every);
    };
    timer = window.setTimeout(ask, 30); // a held-down key asks once
    return () => { stop.abort(); clearTimeout(timer); };
  });
  return found;
}

/** Path of a look into the trace at the cursor; null without one. */
export function look(what: string, values: Record<string, number | string | null | undefined> = {}): string | null {
  return page.trace ? `/inspect/requests/${page.trace.id}/${what}${query(values)}` : null;
}
