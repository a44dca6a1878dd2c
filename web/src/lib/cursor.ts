/** The one cursor, and the URL that holds it: #/view?id=…&pos=…&layer=…&head=… */

export const VIEWS = ["request", "attention", "layers", "sampling", "cache", "engine", "compare"] as const;
export type View = (typeof VIEWS)[number];
export interface Cursor { view: View; id: string; pos: number; layer: number; head: number; form: Form }
export const FORMS = ["matrix", "orbit", "rows"] as const;
export type Form = (typeof FORMS)[number];

const number = (text: string | null): number => {
  const n = Number(text);
  return Number.isInteger(n) && n >= 0 && n < 1 << 24 ? n : 0;
};

export function cursorOf(hash: string): Cursor {
  const [path, search = ""] = hash.replace(/^#\/?/, "").split("?");
  const given = new URLSearchParams(search);
  const view = VIEWS.find((v) => v === path) ?? "request";
  const form = FORMS.find((f) => f === given.get("form")) ?? "matrix";
  const id = /^[A-Za-z0-9-]{1,64}$/.exec(given.get("id") ?? "")?.[0] ?? "";
  return { view, id, pos: number(given.get("pos")), layer: number(given.get("layer")), head: number(given.get("head")), form };
}

export function hashOf(c: Cursor): string {
  if (!c.id) return `#/${c.view}`;
  const values = { id: c.id, pos: c.pos, layer: c.layer, head: c.head, form: c.form };
  return `#/${c.view}?` + new URLSearchParams(Object.entries(values).map(([k, v]) => [k, String(v)]));
}
