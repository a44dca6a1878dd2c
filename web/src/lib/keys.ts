/** The keyboard. Law: one table, from which both the handler and the help come. Nothing is taken while a field has focus. */
import { FORMS, VIEWS } from "./cursor";
import { cursor, go, moveTo, page } from "./state.svelte";

const surprising = (from: number, by: 1 | -1): number => {
  const tokens = page.trace?.tokens ?? [];
  for (let i = from + by; i >= 0 && i < tokens.length; i += by) if (-(tokens[i].logprob ?? 0) > 3) return i;
  return from;
};
const layers = () => page.model?.n_layers ?? 1;
const heads = () => page.model?.n_heads ?? 1;
const within = (n: number, end: number) => Math.min(Math.max(n, 0), end - 1);

export const KEYS: [keys: string[], what: string, act: () => void][] = [
  [["ArrowLeft"], "token before", () => moveTo(cursor.pos - 1)],
  [["ArrowRight"], "next token", () => moveTo(cursor.pos + 1)],
  [["ArrowUp"], "layer up", () => { cursor.layer = within(cursor.layer + 1, layers()); }],
  [["ArrowDown"], "layer down", () => { cursor.layer = within(cursor.layer - 1, layers()); }],
  [["["], "head before", () => { cursor.head = within(cursor.head - 1, heads()); }],
  [["]"], "next head", () => { cursor.head = within(cursor.head + 1, heads()); }],
  [["n"], "next surprise (over 3 nats)", () => moveTo(surprising(cursor.pos, 1))],
  [["p"], "surprise before", () => moveTo(surprising(cursor.pos, -1))],
  [["m"], "matrix", () => { go("attention"); cursor.form = FORMS[0]; }],
  [["o"], "orbit", () => { go("attention"); cursor.form = FORMS[1]; }],
  [["r"], "rows", () => { go("attention"); cursor.form = FORMS[2]; }],
  [["s"], "hide the sink, and renormalise", () => { page.hideSink = !page.hideSink; }],
  ...VIEWS.map((view, i): [string[], string, () => void] => [[String(i + 1)], `view ${view}`, () => go(view)]),
  [["c"], "compare", () => go("compare")],
  [["/"], "write a prompt", () => { go("request"); setTimeout(() => document.getElementById("prompt")?.focus()); }],
  [["?"], "this help", () => { page.help = !page.help; }],
  [["Escape"], "close", () => { page.help = false; }],
];

export function onKey(event: KeyboardEvent): void {
  const target = event.target as HTMLElement;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && target.matches("input, textarea")) { target.blur(); return; }
  if (target.matches("input, textarea, select, [contenteditable]")) return;
  if (target.closest("[data-own-keys]") && event.key.startsWith("Arrow")) return;
  const found = KEYS.find(([keys]) => keys.includes(event.key));
  if (!found) return;
  event.preventDefault();
  found[2]();
}
