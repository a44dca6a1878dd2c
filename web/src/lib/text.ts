/** Numbers and tokens as people read them. */

const NUMBER = new Intl.NumberFormat("en");
export const whole = (n: number): string => NUMBER.format(Math.round(n));

export function percent(p: number): string {
  if (p >= 0.9995 && p < 1) return "99.9+ %";
  if (p !== 0 && p < 0.0005) return "< 0.1 %";
  return `${(100 * p).toFixed(p < 0.0995 ? 1 : p === 1 ? 0 : 1)} %`;
}

export function bytes(n: number): string {
  const units = ["B", "KiB", "MiB", "GiB"];
  let i = 0;
  while (n >= 1024 && i < 3) { n /= 1024; i++; }
  return `${n >= 100 || i === 0 ? Math.round(n) : n.toFixed(1)} ${units[i]}`;
}

export function count(n: number): string {
  if (n >= 1e9) return `${(n / 1e9).toFixed(2)} B`;
  if (n >= 1e6) return `${(n / 1e6).toFixed(0)} M`;
  return whole(n);
}

export const seconds = (s: number): string => (s < 1 ? `${(s * 1000).toFixed(s < 0.01 ? 1 : 0)} ms` : `${s.toFixed(2)} s`);

/** A token with its blanks made visible. */
export function shown(text: string): string {
  if (text === "") return "∅";
  return text.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/[\u0000-\u001f\u007f\ufffd]/g, "·");
}

/** A token in quotes, for sentences. */
export const quoted = (text: string | undefined): string => (text === undefined ? "?" : `“${text.replace(/\n/g, "⏎")}”`);
export const nats = (n: number): string => `${n.toFixed(2)} nats`;
