// A prompt of one's own: the server asks the trained policy and the one it started from, and the run's critic.
import { minus } from "./text.mjs";
import { byId, element } from "./dom.mjs";
import { diffElement, showAnswer, textOf } from "./sample.mjs";

const triedOf = (answers) => answers.map((answer, at) => {
  const box = element("div", "answer");
  const score = answer.score === null ? "" : ` · score ${minus(answer.score)}`;
  box.append(element("h3", "", `${answer.id}${score}`));
  showAnswer(answer, box);
  if (at) {
    const fold = element("details");
    fold.append(element("summary", "", `against ${answers[0].id}, by words`), diffElement(textOf(answers[0]), textOf(answer)));
    box.append(fold);
  }
  return box;
});

export const startTry = () => {
  const form = byId("ask");
  if (!form) return;
  const fields = form.elements;
  const button = form.querySelector("button");
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    byId("asked").textContent = "asking …";
    try {
      const body = JSON.stringify({ prompt: fields.prompt.value, policy: fields.policy.value, critique: fields.critique.checked });
      const response = await fetch("/api/try", { method: "POST", headers: { "Content-Type": "application/json" }, body });
      const found = await response.json();
      if (found.error) throw new Error(found.error);
      const answers = element("div", "answers");
      answers.append(...triedOf(found.answers));
      byId("answers").replaceChildren(answers);
      byId("asked").textContent = "";
    } catch (error) {
      byId("asked").textContent = `▲ ${error.message}`;
    }
    button.disabled = false;
  });
};
