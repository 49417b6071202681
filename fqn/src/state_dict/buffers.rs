//! Which names are buffers. State dicts don't say; these are the persistent buffers that common models keep.

/// Last segments that only buffers have.
const LEAVES: [&str; 17] = [
    "running_mean",
    "running_var",
    "num_batches_tracked",
    "inv_freq",
    "original_inv_freq",
    "freqs_cis",
    "rope_cache",
    "cos_cached",
    "sin_cached",
    "causal_mask",
    "masked_bias",
    "position_ids",
    "token_type_ids",
    "e_score_correction_bias",
    "expert_bias",
    "tokens_per_expert",
    "expert_bias_E",
];

/// Segments under which there are only buffers.
const MODULES: [&str; 3] = ["rotary_emb", "rotary_pos_emb", "rope"];

/// Whether `name` is the name of a buffer; `rank` is the tensor's number of dimensions.
#[must_use]
pub fn is_buffer_name(name: &str, rank: usize) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    // GPT-2 and GPT-NeoX keep the causal mask as `attn.bias`, a 4-d tensor beside the 1-d bias of linears.
    let mask = rank == 4 && last == "bias";
    mask || LEAVES.contains(&last) || name.split('.').any(|segment| MODULES.contains(&segment))
}
