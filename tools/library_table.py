"""Write the table of docs/models.md that says how each architecture and each name of Ollama's runs.

python -m tools.library_table
"""

from __future__ import annotations

from tampu.models import architectures
from tools.models_table import PAGE, write

BEGIN = "<!-- table: made by tools/library_table.py -->"

# The architectures of llama.cpp that are models of their own, as of October 2026.
_LLAMA_CPP = """
    llama llama4 deci falcon grok gpt2 gptj gptneox mpt baichuan starcoder refact bert modern-bert
    nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert bloom stablelm qwen qwen2
    qwen2moe qwen2vl qwen3 qwen3moe qwen3next qwen3vl qwen3vlmoe qwen35 qwen35moe qwen4exp phi2 phi3
    phimoe plamo plamo2 plamo3 codeshell orion internlm2 minicpm minicpm3 gemma gemma2 gemma3
    gemma3n gemma4 gemma-embedding starcoder2 mamba mamba2 maple jamba falcon-h1 xverse command-r
    cohere2 cohere2moe dbrx olmo olmo2 olmoe muse-glimmer openelm arctic deepseek deepseek2
    deepseek2-ocr deepseek32 deepseek4 chatglm glm4 glm4moe glm-dsa bitnet t5 t5encoder jais jais2
    nemotron nemotron_h nemotron_h_moe exaone exaone4 exaone-moe rwkv6 rwkv6qwen2 rwkv7 arwkv7
    granite granitemoe granitehybrid graniteswitch granite_swa chameleon wavtokenizer-dec plm
    bailingmoe bailingmoe2 bailingmoe3 dots1 dots3note arcee afmoe laguna ernie4_5 ernie4_5-moe
    hunyuan-moe hunyuan-dense hunyuan_vl hy_v3 hy_v4 smollm3 gpt-oss lfm2 lfm2moe dream smallthinker
    llada llada-moe seed_oss grovemoe apertus minimax-01 hrm_text minimax-m2 minimax-m3 cogvlm rnd1
    pangu-embedded mistral3 mistral4 paddleocr mimo2 step35 spark2_5 llama-embed maincoder
    kimi-linear kimi-k3 glm5-next talkie mellum nanbeige qwen3tts pockettts
"""
LLAMA_CPP = _LLAMA_CPP.split()

# The names in Ollama's library in August 2026, newest first, by the architecture of their files.
OLLAMA = {
    "bert": "granite-embedding snowflake-arctic-embed2 bge-large paraphrase-multilingual bge-m3 "
    "snowflake-arctic-embed mxbai-embed-large all-minilm",
    "chatglm": "codegeex4 glm4",
    "cohere2": "command-a command-r7b-arabic command-r7b",
    "command-r": "aya-expanse aya command-r-plus command-r",
    "dbrx": "dbrx",
    "deepseek2": "glm-4.7-flash deepseek-coder-v2 deepseek-v2",
    "deepseek2-ocr": "deepseek-ocr",
    "exaone": "exaone-deep exaone3.5",
    "falcon": "falcon2 alfred falcon",
    "gemma": "codegemma gemma",
    "gemma-embedding": "embeddinggemma",
    "gemma2": "shieldgemma gemma2",
    "gemma3": "medgemma1.5 medgemma translategemma functiongemma rnj-1 gemma3",
    "gemma3n": "gemma3n",
    "gemma4": "gemma4",
    "glm4": "glm-ocr",
    "gpt-oss": "gpt-oss-safeguard gpt-oss",
    "granite": "granite4.1 granite3.3 granite3.2-vision granite3.2 granite3.1-dense "
    "granite3-guardian granite3-dense",
    "granitehybrid": "granite4",
    "granitemoe": "granite3.1-moe granite3-moe",
    "internlm2": "bespoke-minicheck internlm2",
    "laguna": "laguna-xs.2",
    "lfm2": "lfm2 lfm2.5-thinking",
    "lfm2moe": "lfm2.5",
    "llama": "magistral devstral cogito r1-1776 dolphin3 falcon3 llama3.3 tulu3 opencoder smollm2 "
    "llama-guard3 llama3.2 nemotron mistral-small reflection yi-coder hermes3 smollm mistral-large "
    "llama3.1 mistral-nemo firefunction-v2 llama3-groq-tool-use mathstral codestral granite-code "
    "llama3-chatqa llava-phi3 llava-llama3 llama3-gradient dolphin-llama3 llama3 wizardlm2 "
    "duckdb-nsql tinydolphin nous-hermes2-mixtral megadolphin llama-pro tinyllama openhermes notux "
    "notus dolphin-mistral nous-hermes2 solar dolphin-mixtral mixtral bakllava llava magicoder "
    "deepseek-llm meditron starling-lm orca2 deepseek-coder goliath neural-chat openchat yi "
    "yarn-mistral yarn-llama2 xwinlm mistrallite codebooga mistral-openorca zephyr nexusraven "
    "samantha-mistral sqlcoder mistral wizardcoder phind-codellama codellama wizardlm "
    "wizardlm-uncensored wizard-vicuna wizard-vicuna-uncensored wizard-math vicuna stable-beluga "
    "orca-mini open-orca-platypus2 nous-hermes medllama2 llama2 llama2-uncensored llama2-chinese "
    "everythinglm codeup",
    "llama4": "llama4",
    "mistral3": "mistral-medium-3.5 devstral-small-2 devstral-2 ministral-3 mistral-small3.2 "
    "mistral-small3.1",
    "mllama": "llama3.2-vision",
    "nemotron": "nemotron-mini",
    "nemotron_h_moe": "nemotron3 nemotron-cascade-2 nemotron-3-super nemotron-3-nano",
    "nomic-bert": "nomic-embed-text",
    "nomic-bert-moe": "nomic-embed-text-v2-moe",
    "olmo2": "olmo-3.1 olmo-3 olmo2",
    "phi2": "moondream dolphin-phi phi",
    "phi3": "phi4-reasoning phi4-mini-reasoning phi4-mini phi4 phi3.5 nuextract phi3",
    "qwen2": "deepcoder deepscaler openthinker smallthinker sailor2 qwq marco-o1 athene-v2 "
    "qwen2.5-coder qwen2.5 reader-lm minicpm-v qwen2-math qwen2 codeqwen qwen",
    "qwen25vl": "qwen2.5vl",
    "qwen3": "qwen3-embedding qwen3 deepseek-r1",
    "qwen35": "qwen3.5",
    "qwen35moe": "qwen3.6",
    "qwen3moe": "qwen3-coder",
    "qwen3next": "qwen3-coder-next qwen3-next",
    "qwen3vl": "qwen3-vl",
    "solar": "solar-pro",
    "stablelm": "stablelm2 stable-code stablelm-zephyr",
    "starcoder": "starcoder",
    "starcoder2": "dolphincoder starcoder2",
}
# What reads the pictures of these is not there: tampu runs their text.
WITHOUT_IMAGES = ("granite3.2-vision", "minicpm-v", "moondream")

# The first fifty names of Ollama's list, newest first.
_NEWEST = """
    lfm2.5 mistral-medium-3.5 granite4.1 nemotron3 laguna-xs.2 qwen3.6 medgemma1.5 medgemma
    nemotron-cascade-2 gemma4 lfm2 nemotron-3-super qwen3.5 qwen3-coder-next glm-ocr
    lfm2.5-thinking glm-4.7-flash translategemma nemotron-3-nano functiongemma olmo-3.1 olmo-3
    nomic-embed-text-v2-moe devstral-small-2 rnj-1 devstral-2 qwen3-next ministral-3 deepseek-ocr
    gpt-oss-safeguard qwen3-vl granite4 qwen3-embedding embeddinggemma gpt-oss qwen3-coder
    mistral-small3.2 gemma3n magistral devstral qwen2.5vl phi4-reasoning phi4-mini-reasoning qwen3
    granite3.3 deepcoder mistral-small3.1 cogito llama4 exaone-deep
"""
NEWEST = _NEWEST.split()


def native() -> set[str]:
    """Return the architectures that tampu computes itself, by llama.cpp's names."""
    return {*architectures()}


def native_names() -> list[str]:
    """Return the names of Ollama's library that run natively, with their pictures if they see."""
    known = native()
    names = [name for each, listed in OLLAMA.items() if each in known for name in listed.split()]
    return [name for name in names if name not in WITHOUT_IMAGES]


def table() -> str:
    """Return the table: a row for each architecture."""
    known = native()
    lines = ["| architecture | runs | names in Ollama's library |", "|---|---|---|"]
    for name in sorted({*LLAMA_CPP, *OLLAMA, *known}):
        names = [
            f"{each} (text)" if name in known and each in WITHOUT_IMAGES else each
            for each in OLLAMA.get(name, "").split()
        ]
        runs = "natively" if name in known else "llama.cpp" if name in LLAMA_CPP else "no"
        lines.append(f"| `{name}` | {runs} | {', '.join(names)} |")
    count = sum(len(each.split()) for each in OLLAMA.values())
    newest = sum(name in native_names() for name in NEWEST)
    total = (
        f"{len(known)} architectures run natively, {len(native_names())} of the {count} names "
        f"in Ollama's library, {newest} of the newest {len(NEWEST)}. This is by the architecture "
        "of the files; the files themselves could not be tried."
    )
    return "\n".join([total, "", *lines])


if __name__ == "__main__":
    write(PAGE, table(), BEGIN)
