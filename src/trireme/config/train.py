"""Section ``train``: how many steps, how large, how fast, and when to stop."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trireme.config.schema import AsTuple, Number, Section, Whole

LENGTH_KEYS = ("max_steps", "max_tokens", "epochs")
"""Keys of the section of which exactly one says how long a run is."""


def _compile_by_unit(value: Any) -> Any:
    """Take what is compiled as well: ``block`` is what ``on`` compiles."""
    return {"none": "off", "block": "on"}.get(value, value) if isinstance(value, str) else value


class TrainSection(Section):
    """How many steps, how large, how fast, and when to stop."""

    max_steps: Whole | None = Field(
        None, ge=1, description="Optimizer steps. Exactly one of max_steps, max_tokens, epochs."
    )
    max_tokens: Whole | None = Field(
        None, ge=1, description="Stop after this many tokens (padding included), rounded up to a step."
    )
    epochs: Number | None = Field(None, gt=0, description="Passes over all samples, rounded up to a step.")
    global_batch_seqs: Whole = Field(32, ge=1, le=2**24, description="Sequences an optimizer step.")
    microbatch_seqs: Whole | None = Field(
        None, ge=1, description="Sequences a forward and backward; the rest is accumulated. Default: all of a rank's."
    )
    lr: Number = Field(3e-4, ge=0, description="Peak learning rate.")
    schedule: Literal["constant", "linear", "cosine", "wsd"] = Field(
        "cosine", description="Shape of the learning rate after warm-up."
    )
    min_lr_ratio: Number = Field(0.1, ge=0, le=1, description="Last learning rate over the peak.")
    warmup_steps: Whole | None = Field(None, ge=0, description="Steps of linear warm-up. Default: 2 % of the steps.")
    warmup_tokens: Whole | None = Field(None, ge=0, description="Warm-up in tokens instead of steps.")
    decay_ratio: Number = Field(0.2, gt=0, le=1, description="Share of the steps that wsd decays over, at the end.")
    beta1: Number = Field(0.9, ge=0, lt=1, description="AdamW's beta1.")
    beta2: Number = Field(0.95, ge=0, lt=1, description="AdamW's beta2.")
    eps: Number = Field(1e-8, gt=0, description="AdamW's epsilon.")
    weight_decay: Number = Field(
        0.1, ge=0, description="Decoupled decay; never on norms, biases or other 1-D parameters."
    )
    clip_grad_norm: Number | None = Field(1.0, gt=0, description="Largest global gradient norm; null: no clipping.")
    compile: Annotated[Literal["off", "on", "auto"], BeforeValidator(_compile_by_unit)] = Field(
        "off", description="torch.compile of each block: never, always, or where this machine is measured to gain."
    )
    loss: Literal["auto", "plain", "chunked"] = Field(
        "auto", description="Logits all at once, for some tokens at a time, or the latter where they are large."
    )
    num_threads: Whole | None = Field(None, ge=1, description="CPU threads of the math library. Default: the cores.")
    on_nonfinite: Literal["skip", "rollback", "stop"] = Field(
        "skip",
        description="A NaN or Inf loss or gradient: skip the step, go back to the last good checkpoint and leave the "
        "step's samples out, or stop.",
    )
    max_nonfinite: Whole = Field(3, ge=1, description="Stop after this many skipped steps in a row.")
    on_spike: Literal["ignore", "skip", "rollback", "stop"] = Field(
        "ignore", description="The same for a loss or gradient norm far above those of late."
    )
    spike_sigmas: Number = Field(
        8.0, gt=0, description="Standard deviations above the mean of late that make a loss or gradient norm a spike."
    )
    rollback_leave_out_steps: Whole = Field(
        1, ge=1, description="Steps whose samples a rollback leaves out: the bad one and so many before it."
    )
    max_rollbacks: Whole = Field(3, ge=0, description="Rollbacks a run; one more stops it.")
    replica_check_every_steps: Whole | None = Field(
        None, ge=1, description="Compare data-parallel copies of the weights bit by bit this often, and before a save."
    )
    eval_every_steps: Whole | None = Field(None, ge=1, description="Default: ten times a run, and at the end.")
    eval_seqs: Whole = Field(256, ge=1, description="At most this many held-out sequences an evaluation.")
    sample_every_steps: Whole | None = Field(
        None, ge=1, description="Write a sample this often. Default: with each evaluation."
    )
    sample_prompts: Annotated[tuple[str, ...], AsTuple] = Field(
        (), description="Prompts of the samples. Default: the begin token alone."
    )
    sample_tokens: Whole = Field(64, ge=1, description="Tokens a sample.")


class PrecisionSection(Section):
    """Number formats; a bare text stands for {policy: text}."""

    policy: Literal["auto", "fp32", "bf16", "fp16", "bf16_master", "fp16_master", "bf16_pure", "fp8"] = Field(
        "auto",
        description="bf16, fp16: mixed, weights in fp32 (O1); bf16_master, fp16_master: 16-bit weights, fp32 copies in "
        "the optimizer (O2); bf16_pure: nothing in fp32; fp8: linear layers in 8 bits, the rest as bf16; "
        "auto: bf16 where this device is measured to gain, else fp32; measured once and kept in the run folder.",
    )
    tf32: bool = Field(
        False, description="Let fp32 products round their inputs to TF32 (10 bits), where the device has it."
    )
    stochastic_rounding: bool = Field(
        False, description="bf16_pure: round updates up or down at random, so that small ones survive; fp32 moments."
    )
    fallback: Literal["stop", "fp32"] = Field(
        "stop", description="If the device lacks the format: stop, or train in fp32."
    )
    init_loss_scale: Number = Field(
        65536.0, ge=1e-4, le=2.0**32, description="First loss scale of fp16 and fp16_master."
    )
    loss_scale_growth_steps: Whole = Field(2000, ge=1, description="Good steps before the loss scale doubles.")
