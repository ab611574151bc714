"""vLLM's multimodal processor of the thinker, with features of the clip alone."""

from transformers.models.qwen2_5_omni.processing_qwen2_5_omni import Qwen2_5OmniProcessor
from vllm.model_executor.models.qwen2_5_omni_thinker import Qwen2_5OmniThinkerProcessingInfo

from engine.models.feature_extractor import ClipFeatureExtractor


class ThinkerProcessingInfo(Qwen2_5OmniThinkerProcessingInfo):
    """Gives the stock processor our feature extractor."""

    def get_hf_processor(self, **kwargs: object) -> Qwen2_5OmniProcessor:
        """The checkpoint's processor; vLLM keeps it, so the exchange happens once."""
        processor = super().get_hf_processor(**kwargs)
        if not isinstance(processor.feature_extractor, ClipFeatureExtractor):
            processor.feature_extractor = ClipFeatureExtractor(**processor.feature_extractor.to_dict())
        return processor
