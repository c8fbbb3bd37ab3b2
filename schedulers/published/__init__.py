"""The 13 policies of a published study of ranking portability, as they were coded there, defects included.

They are a set of their own, `NAME@published`, never ranked with the others unless asked. Each defect that lives in a
policy is a parameter with unit "switch": 1 (on) as published, the default; 0 (off) repaired.

| switch | study | on (published) | off (repaired) |
|---|---|---|---|
| `stall` | A04 | a prompt over 2,560 tokens closes the queue for ever | whole prompts up to the longest legal one |
| `growth` | A05 | admission counts tokens, not their growth | whole blocks and a token more, above a 1% watermark |
| `shadow_prefill` | A06 | prompts are counted down privately, beside the engine | the engine's count alone |
| `skip_not_reject` | A07 | who can't make it stays in the queue to the end | is rejected at once |
| `laxity_in_steps` | A09 | deadline in seconds minus work in steps | both in seconds |
| `never_drops` | A10 | threshold infinite | 0 s |
| `one_class` | A11 | one class for all | the request's tenant, with its weight |
| `fallback_tbt` | A11, A12 | 0.5 s between tokens for all | the tier's own target |
| `no_eviction` | A13 | memory counted by prompts alone | by the blocks that are held, as in Sarathi |
| `forecast_deadline` | A14 | deadline made of the forecast | the tier's: end to end, else the next token's |

`slack` is the factor 20 of the deadline: 10 and 40 are the study's own variants, 20/load is its A01.

Not here, because no policy decides it: A01 to A03 and A08 (deadlines that scale, regions, flat step time, drain)
belong to fleets, regions and metrics; A15 to A23 to the analysis. The study's engine (64 sequences, 8,192 blocks of
16 tokens, steps of 1 ms, free prefill) is a fleet and a profile; policies take limits from the engine they run on.

What differs, because the engine's rules hold for everybody:

* Memory is always checked (E1). Where the study overshot (A05) or let decodes grow uncounted (A13), the newest
  request is evicted here and recomputed, generated tokens included. The study recomputed its prompt only.
* The study let a stalled or skipped request wait until 50,000 steps after the last arrival. Behind a stalled prompt
  nobody is ever served again, so it and all behind it are refused at the first look: the same requests end unserved,
  sooner. A skipped one stays, and counts as waiting, until its engine has stood idle for 50 s; then it is refused.
* The watermark would also stall a prompt of more than 99% of the memory; an idle engine takes it here.
* The engine prefills a prompt at its own budget and cost before it decodes. With `shadow_prefill` on, the private
  count limits admission (and which decodes SLAI holds back), not the work: with free prefill and a large budget that
  is the study's engine, with real costs it is not.
* Sarathi and chunked vLLM are one policy below 129 sequences, whatever is repaired (A15 merges them): first come
  first served, with the newest evicted, leaves none but the newest of a batch in prefill.
* Ties beyond the first key go by (arrival, luck), not by request number; priority is 1 for all, as it was there.
* A step is thought to last 1 ms, as there, whatever the profile says.
"""
