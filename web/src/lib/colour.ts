/** Colours of numbers. Cividis for amounts (readable with any colour vision), PuOr for signed ones, Okabe–Ito for kinds. */

const CIVIDIS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];
const PUOR = ["#7f3b08", "#b35806", "#e08214", "#fdb863", "#f7f7f7", "#b2abd2", "#8073ac", "#542788", "#2d004b"];
export const KINDS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999"];

export type RGB = [number, number, number];

export function rgb(hex: string): RGB {
  const n = parseInt(hex.slice(1), 16);
  return [n >> 16, (n >> 8) & 255, n & 255];
}

function along(ramp: readonly RGB[], t: number): RGB {
  const at = Math.min(Math.max(Number.isFinite(t) ? t : 0, 0), 1) * (ramp.length - 1);
  const i = Math.min(Math.floor(at), ramp.length - 2), f = at - i;
  return [0, 1, 2].map((c) => Math.round(ramp[i][c] + (ramp[i + 1][c] - ramp[i][c]) * f)) as RGB;
}

const cividisRamp = CIVIDIS.map(rgb), puorRamp = PUOR.map(rgb);
/** t in [0, 1]. */
export const cividis = (t: number): RGB => along(cividisRamp, t);
/** t in [-1, 1], 0 in the middle. */
export const puor = (t: number): RGB => along(puorRamp, (t + 1) / 2);
export const css = ([r, g, b]: RGB, alpha = 1): string => (alpha === 1 ? `rgb(${r} ${g} ${b})` : `rgb(${r} ${g} ${b} / ${alpha})`);

/** Black or white, whichever reads better on it (WCAG relative luminance). */
export function ink(colour: RGB): string {
  const [r, g, b] = colour.map((v) => { const s = v / 255; return s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}

/** 256 colours as 4 bytes each, for painting tiles. */
export const TABLE = Uint8ClampedArray.from({ length: 1024 }, (_, i) => (i % 4 === 3 ? 255 : cividis((i >> 2) / 255)[i % 4]));

const STEPS = Array.from({ length: 256 }, (_, i): [string, string] => { const c = cividis(i / 255); return [css(c), ink(c)]; });
/** Background and text of an amount in [0, 1]: made once, since thousands of tokens change colour with each key. */
export const filled = (t: number): [string, string] => STEPS[Math.round(255 * Math.min(Math.max(t, 0), 1))];
