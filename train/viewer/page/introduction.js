// The Model view before a block is open: where to start, the attention to the source, and the parameters.
import { el, fixed, rounded, searches, short } from "./parts.js";
import { floats, matrix } from "./matrix.js";

const OUTPUT = { classification: "its label leaves", tagging: "the tags of its words leave" };

const DONE = { translation: "translate", tree: "parse", text: "continue", classification: "classify", tagging: "tag" };

// Returns the language to which the extension of a file refers, such as German for train.de.
function languageOf(file) {
  const [, code] = file.match(/\.([a-z]{2})$/) ?? [];
  return code && new Intl.DisplayNames("en", { type: "language", fallback: "none" }).of(code);
}

// Returns a text on the model's task and training text.
function training({ task, trained_on: files, examples }) {
  const [source, target] = task === "translation" ? files.map(languageOf) : [];
  const what = source && target ? `${source} into ${target}, on text` : "text";
  const like = examples.length ? ` such as "${short(examples[0], 60)}"` : "";
  const from = files.length ? ` from ${files.join(" and ")}` : "";
  return `This model was trained to ${DONE[task]} ${what}${like}${from}. On other text, its output may be meaningless.`;
}

// Returns the elements. `answer` and `flow` may be missing; `backward` is the direction shown; `walk` opens the first block.
export function introduction(model, answer, flow, backward, walk) {
  const { task, blocks, kinds, layers, heads, d_model, d_ff, d_k, vocabulary, parameters, norm, notation } = model;
  const count = (kind) => blocks.filter((one) => one.kind === kind).reduce((sum, one) => sum + one.parameters, 0);
  const rows = [
    ["Attention", count("attention")],
    ["Feed-forward", count("feed_forward")],
    ["Norms", count("residual") + count("norm")],
  ];
  if (task in OUTPUT) rows.push(["Labels", count("output")]);
  const rest = parameters - rows.reduce((sum, [, n]) => sum + n, 0);
  return [
    el("h3", { class: "start" }, "Start here"),
    el("p", { class: "training" }, training(model)),
    el(
      "p",
      {},
      backward
        ? `${flow?.about_loss ?? ""} The gradient of the loss flows from the top to the bottom. The strip of each block shows the gradient ` +
            "of the block's output (at the top, of its input h)"
        : `The ${searches(task) ? "sentence" : "text"} above enters at the bottom, and ${OUTPUT[task] ?? "the next tokens leave"} ` +
            "at the top. Each box is a block of the network, with its number of parameters; the strip shows the block's " +
            "output (at the top, its input h)",
      ", one row per token: purple is negative, green positive. ",
      answer ? "Select a block to see inside." : "",
    ),
    answer
      ? el("p", { class: "walk" }, el("button", { type: "button", class: "primary", onclick: walk }, `Walk through the ${backward ? "backward pass" : "model"} →`))
      : el("p", { class: "walk" }, el("strong", {}, "Enter a sentence above to see its values; you can then open the blocks.")),
    ...(answer ? [attention(answer, kinds)] : []),
    el("h3", {}, "Tokens"),
    el("p", { class: "signs" }, ...notation.signs.flatMap(([sign, meaning]) => [el("code", {}, sign), ` ${meaning}. `])),
    el("p", { class: "soft" }, notation.text),
    el("h3", {}, `${rounded(parameters)} parameters`),
    el(
      "ul",
      { class: "share" },
      ...[...rows, ["Embeddings", rest]].map(([name, n]) => {
        const bar = el("span", { class: "fill" });
        bar.style.width = `${(100 * n) / parameters}%`;
        return el(
          "li",
          {},
          el("span", {}, name),
          el("span", { class: "track" }, bar),
          el("span", {}, n.toLocaleString("en")),
        );
      }),
    ),
    el(
      "p",
      { class: "soft" },
      `N = ${layers} layers${searches(task) ? " in each stack" : ""}, d_model ${d_model}, d_ff ${d_ff}, ` +
        `${heads} heads of width ${d_k}, ${vocabulary.toLocaleString("en")} tokens, ${norm}-norm. `,
      flow
        ? `The loss on this sentence is ${fixed(flow.loss)} nats per token. ${backward ? "" : flow.about_loss} ` +
            "The gradient of the loss flows back from the top."
        : "",
    ),
  ];
}

// Shows what each token reads in the last layer: the weights of cross-attention, or of self-attention in a model with one stack.
function attention(answer, kinds) {
  const kind = "cross" in answer.heads ? "cross" : "text",
    { rows, columns, layers: all, heads: count, mean, masked } = answer.heads[kind];
  const values = floats(mean);
  const title = kind === "cross" ? "Which source token each output token reads" : "Which tokens each token reads";
  const [row, column] = kinds[kind];
  return el(
    "div",
    { class: "preview" },
    el("h3", {}, title),
    el("p", { class: "soft" }, `Rows: ${row}. Columns: ${column}.`),
    matrix({ title: `Attention, mean of ${count} heads of layer ${all - 1}`, rows, columns, values, most: 1, masked }),
  );
}
