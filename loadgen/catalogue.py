"""What is published: each traffic file with its address, size, digest, licence and citation.

Source: reference/traces.md sections 4 and 4.1. Standing says how well a digest is known: ``computed`` from
the file itself, ``owner`` (told by the owners), ``third-party`` (told by others who hold the file): compare
the latter on the first real fetch and treat a difference as unpinned until a person has looked.
"""

from dataclasses import dataclass

from schedulers.errors import InputError

CC_BY = "CC-BY-4.0"
APACHE = "Apache-2.0"


@dataclass(frozen=True)
class Origin:
    """Whose data it is: licence, what to cite, and what the reader changes."""

    family: str
    licence: str
    citation: str
    changes: str


@dataclass(frozen=True)
class Entry:
    """One published file; ``bytes`` 0 or ``sha256`` "" where not known; ``about_bytes`` is not checked."""

    name: str
    origin: Origin
    url: str
    bytes: int
    rows: int
    sha256: str
    standing: str
    about_bytes: int = 0
    mirrors: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """The file's official name."""
        return self.url.rsplit("/", 1)[1]


_CUT = "cut to windows, times rebased, columns renamed"

AZURE_2023 = Origin(
    "azure2023",
    CC_BY,
    'Patel et al., "Splitwise: Efficient generative LLM inference using phase splitting", ISCA 2024',
    _CUT,
)
AZURE_2024 = Origin(
    "azure2024",
    CC_BY,
    'Stojkovic et al., "DynamoLLM: Designing LLM Inference Clusters for Performance and Energy Efficiency", '
    "HPCA 2025",
    _CUT,
)
AZURE_2025 = Origin(
    "azure2025",
    CC_BY,
    'Qiu et al., "ModServe: Modality- and Stage-Aware Resource Disaggregation for Scalable Multimodal Model '
    'Serving", SoCC 2025',
    _CUT,
)
BURSTGPT = Origin(
    "burstgpt",
    CC_BY,
    'Wang et al., "BurstGPT: A Real-World Workload Dataset to Optimize LLM Serving Systems", KDD 2025',
    _CUT + ", arrivals spread within their second",
)
BAILIAN = Origin(
    "bailian",
    APACHE,
    'Wang et al., "KVCache Cache in the Wild: Characterizing and Optimizing KVCache Cache at a Large Cloud '
    'Provider", USENIX ATC 2025',
    "cut to windows, times rebased, prefix ids chained",
)
MOONCAKE = Origin(
    "mooncake",
    APACHE,
    'Qin et al., "Mooncake: Trading More Storage for Less Computation", FAST 2025',
    "cut to windows, times rebased, prefix ids chained, batches of 3 s spread",
)
SERVEGEN = Origin(
    "servegen",
    APACHE,
    'Xiang et al., "ServeGen: Workload Characterization and Generation of Large Language Model Serving in '
    'Production", arXiv 2505.09999, NSDI 2026',
    "pooled and fitted",
)
ORIGINS = (AZURE_2023, AZURE_2024, AZURE_2025, BURSTGPT, BAILIAN, MOONCAKE, SERVEGEN)

_RAW = "https://raw.githubusercontent.com"
_AZURE_GIT = f"{_RAW}/Azure/AzurePublicDataset"
_AZURE_2023 = f"{_AZURE_GIT}/b469a113cedca53ddc3bdea71a143dc4b7d8700c/data"
_AZURE_2024 = "https://github.com/Azure/AzurePublicDataset/releases/download/dataset-llm-2024"
_AZURE_BLOB = "https://azurepublicdatasettraces.blob.core.windows.net/azurellminfererencetrace"
_BURSTGPT = "https://github.com/HPMLL/BurstGPT/releases/download/v2.0"
_BAILIAN = (
    "https://media.githubusercontent.com/media/alibaba-edu/qwen-bailian-usagetraces-anon/"
    "5f7439c51ec248a0c585f7d90a41a6f57773b912"
)
_MOONCAKE = f"{_RAW}/kvcache-ai/Mooncake/3b5a594133958449a1feaf1c9e0fc1b553e34a28/FAST25-release"

_COMPUTED, _OWNER, _OTHERS = "computed", "owner", "third-party"


def _azure_2024(part: str, size: tuple[int, int], rows: int, sha256: str) -> Entry:
    file = f"AzureLLMInferenceTrace_{part}_1week.csv"
    return Entry(
        f"azure2024-{part}",
        AZURE_2024,
        f"{_AZURE_2024}/{file}",
        size[0],
        rows,
        sha256,
        _OTHERS,
        about_bytes=size[1],
        mirrors=(f"{_AZURE_BLOB}/{file}",),
    )


ENTRIES = (
    Entry(
        "azure2023-code",
        AZURE_2023,
        f"{_AZURE_2023}/AzureLLMInferenceTrace_code.csv",
        320_117,
        8_819,
        "54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6",
        _COMPUTED,
    ),
    Entry(
        "azure2023-conv",
        AZURE_2023,
        f"{_AZURE_2023}/AzureLLMInferenceTrace_conv.csv",
        719_188,
        19_366,
        "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
        _COMPUTED,
    ),
    _azure_2024(
        "code",
        (0, 692_000_000),
        16_803_695,
        "71de5c55cbc35f8f1ed0b6b7806b4cd1e9764b0058469725a6aac98023a1448f",
    ),
    _azure_2024(
        "conv",
        (1_135_195_393, 0),
        27_303_999,
        "a0cc9b969a9bbf0fd811802cbf4323edd3a209ace791e3799ad4f9207f213941",
    ),
    Entry(
        "azure2025-mm",
        AZURE_2025,
        f"{_AZURE_GIT}/master/data/AzureLMMInferenceTrace_multimodal.csv.gz",
        0,
        1_000_000,
        "",
        _OWNER,
        about_bytes=8_500_000,
    ),
    Entry(
        "burstgpt-1",
        BURSTGPT,
        f"{_BURSTGPT}/BurstGPT_1.csv",
        52_283_111,
        1_429_737,
        "4bb3783693d0a435686fbfc885615d2349bd067239079fa4b749f2e679e12122",
        _OTHERS,
    ),
    Entry(
        "burstgpt-1-ok",
        BURSTGPT,
        f"{_BURSTGPT}/BurstGPT_without_fails_1.csv",
        51_429_517,
        1_404_300,
        "a4d068a7113ec0290e74063a1b3447dc6001a30e4298eb313581b71006dda1f4",
        _OTHERS,
    ),
    Entry(
        "burstgpt-2",
        BURSTGPT,
        f"{_BURSTGPT}/BurstGPT_2.csv",
        144_819_209,
        3_858_400,
        "44bf5942b03fca42c01a226a545ad3a750ec62688faecd67b6831c56a8928bf7",
        _OTHERS,
    ),
    Entry(
        "burstgpt-2-ok",
        BURSTGPT,
        f"{_BURSTGPT}/BurstGPT_without_fails_2.csv",
        142_376_815,
        3_784_200,
        "56193aa9b2bb26128ded43d2d29a960df6bf5af062bcfc9b005f3fcaa4e6e501",
        _OTHERS,
    ),
    Entry(
        "burstgpt-3",
        BURSTGPT,
        f"{_BURSTGPT}/BurstGPT_3.csv",
        231_682_327,
        5_344_021,
        "2299986a07388aa303ec2c41d1131e756db650a39ed6ef9dfe7cc3d7f9a43b8f",
        _OTHERS,
    ),
    Entry(
        "burstgpt-3-ok",
        BURSTGPT,
        f"{_BURSTGPT}/BurstGPT_without_fails_3.csv",
        217_312_026,
        4_956_058,
        "3326259f9efb11845bc5ef85fa97e6f691050b0974621c91ef22acd566c43a40",
        _OTHERS,
    ),
    Entry(
        "bailian-a",
        BAILIAN,
        f"{_BAILIAN}/qwen_traceA_blksz_16.jsonl",
        56_354_493,
        43_058,
        "07cedc9ed8aff301994ac68ed4aede8123b7603673575eeba9dd677de663db17",
        _OTHERS,
    ),
    Entry(
        "bailian-b",
        BAILIAN,
        f"{_BAILIAN}/qwen_traceB_blksz_16.jsonl",
        96_209_982,
        172_800,
        "68e3f98e2d601d60d0abf4b89bc8a3654372abab7b1cde6373a13d0054379d59",
        _OTHERS,
    ),
    Entry(
        "bailian-thinking",
        BAILIAN,
        f"{_BAILIAN}/qwen_thinking_blksz_16.jsonl",
        27_901_454,
        10_812,
        "41ac36d9d1b54d084eeb6b05e9d142ba9d02f8bf79cfc9fff418d8ab7cdee906",
        _OWNER,
    ),
    Entry(
        "bailian-coder",
        BAILIAN,
        f"{_BAILIAN}/qwen_coder_blksz_16.jsonl",
        132_054_902,
        43_011,
        "3d74974cebb7bccb69b1ca6ea210a44d9a3033443c0271ed015327284dea1aff",
        _OWNER,
    ),
    Entry(
        "mooncake-conversation",
        MOONCAKE,
        f"{_MOONCAKE}/traces/conversation_trace.jsonl",
        3_029_533,
        12_031,
        "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
        _COMPUTED,
    ),
    Entry(
        "mooncake-toolagent",
        MOONCAKE,
        f"{_MOONCAKE}/traces/toolagent_trace.jsonl",
        0,
        23_608,
        "48a2db1a13d3bc05e6330140c64f604ba366df20d3c9e128b5c35a01c1fa5f71",
        _OTHERS,
        about_bytes=4_400_000,
    ),
    Entry(
        "mooncake-synthetic",
        MOONCAKE,
        f"{_MOONCAKE}/traces/synthetic_trace.jsonl",
        1_136_313,
        3_993,
        "bd070915a98fc0ed264d7cfef2ce746002eb3076a695ec31ba2674c0111ec131",
        _COMPUTED,
    ),
    Entry(
        "mooncake-arxiv",
        MOONCAKE,
        f"{_MOONCAKE}/arxiv-trace/mooncake_trace.jsonl",
        0,
        0,
        "b434f1816a707f4bac697235588184ebc374c9907cb981bb65fb0643471fe711",
        _OTHERS,
    ),
)
"""Every file that ``windtunnel traces fetch`` knows. ServeGen publishes client rates, no rows."""

SERVEGEN_TREE = "https://github.com/alibaba/ServeGen at f891d1189eb32b3868dfc443800c4150548c282a"


def entry(name: str) -> Entry:
    """Return the entry called ``name``; raises InputError that lists the names."""
    for one in ENTRIES:
        if one.name == name:
            return one
    if name == SERVEGEN.family:
        raise InputError(
            "ServeGen publishes client rates and length histograms in 844 files, no request rows",
            where=name,
            fix=f"clone {SERVEGEN_TREE}",
        )
    known = ", ".join(one.name for one in ENTRIES)
    raise InputError(f"no published trace is called {name!r}", where="NAME", fix=f"one of: {known}")


def by_digest(digests: tuple[str, ...]) -> Entry | None:
    """Return the entry that pins one of ``digests`` (SHA-256, hex), or None."""
    return next((one for one in ENTRIES if one.sha256 and one.sha256 in digests), None)


def origin(family: str) -> Origin:
    """Return the origin of ``family``; a user's own file has none."""
    return next((one for one in ORIGINS if one.family == family), Origin(family, "", "", _CUT))
