// One sentence that says an answer, to be read above it and sent to somebody who has no time.

import { chance, count, days, fixed, gib, money, percent, plainSeconds, seconds } from "./format.js";

/** Of a ranked training plan: how fast, what for, whether it fits. */
export function trainingSentence({ model, cluster, plans, nothing_legal: none }) {
  const job = `${model.name} on ${count(cluster.num_gpus)} x ${cluster.gpu}`;
  if (none) return `${job} has no legal plan.`;
  if (!plans.length) return `${job} does not fit in memory.`;
  const [best] = plans;
  const { step_seconds_p5: low, step_seconds_p95: high, fit_probability: fit } = best.confidence;
  const long = best.days_to_train === null ? "" : `; the tokens take ${days(best.days_to_train)} days${best.cost === null ? "" : ` and cost ${money(best.cost)}`}`;
  return `${job}: a step of ${seconds(best.step_seconds)} (${plainSeconds(low)} to ${plainSeconds(high)}), ${percent(best.mfu, 1)} of the GPUs’ peak, ` +
    `${gib(best.memory.peak_gib)} of ${gib(best.memory.limit_gib)} GiB, fits with a chance of ${chance(fit)}${long}.`;
}

/** Of ranked deployments: what one serves, how long a user waits, what it costs. */
export function servingSentence({ question, deployments, miss }) {
  if (!deployments.length) return `${question.model} on ${count(question.num_gpus)} x ${question.gpu}: ${miss}`;
  const [best] = deployments;
  const cost = best.cost_per_million_tokens === null ? "" : `, ${fixed(best.cost_per_million_tokens, 2)} per million tokens`;
  return `${question.model} on ${count(best.gpus)} x ${question.gpu} with ${question.engine}: ${count(best.tokens_per_second_per_gpu)} tokens/s/GPU for ${count(best.users)} users, ` +
    `first token after ${seconds(best.ttft_seconds)}${best.tpot_seconds ? `, then one every ${seconds(best.tpot_seconds)}` : ""}${cost}.`;
}
