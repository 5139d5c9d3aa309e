"""The figures of makers' data sheets for devices, and the rates that links reach.

Peaks are dense (no sparsity) and, for matrix units, with float32 accumulation, which is what training uses; on GeForce cards that is
half of the rate with half-precision accumulation. A sheet that prints rates with sparsity is halved here.
"""

from __future__ import annotations

from dataclasses import dataclass

from snugfit.errors import SettingError, nearest

_A100 = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
_ADA = "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
_AMPERE = "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
_BLACKWELL = (
    "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"
)


HERE = ("cpu", "cuda", "mps")
"""Names of what this machine has, which no sheet describes."""


@dataclass(frozen=True)
class Sheet:
    """A device: memory in GiB, peaks in TFLOP/s, bandwidth in GB/s (10^9), whence the figures are.

    The memory is what CUDA reports, which is less than is printed on the box: the driver and error correction keep a part. `host` is the
    host memory that is usual beside each such device, in GiB.

    `half` is float16, and bfloat16 as well from compute capability 8.0; `tf32`, `float8` and `int8` are 0 where the device has
    none. `efficiency` is the share of the peak that large matrix products reach: judgement until calibrated.
    """

    title: str
    memory: float
    host: float
    capability: tuple[int, int]
    half: float
    float32: float
    tf32: float
    float8: float
    int8: float
    float64: float
    bandwidth: float
    host_link: str
    peer_link: str
    efficiency: float
    source: str


# Host memory is that of the smallest instance that is rented with one such device, or its share of an instance with several:
#   T4 and L4 of Google Colab; V100 16 GB of AWS p3.2xlarge, 32 GB of p3dn.24xlarge (768 for 8); A10 and H100 PCIe of Lambda;
#   A10G of AWS g5.4xlarge, L40S of g6e.2xlarge; A100 of Google a2-highgpu-1g and a2-ultragpu-1g, H100 of a3-highgpu-1g;
#   H200 of AWS p5en.48xlarge (2,048 for 8), B200 of p6-b200.48xlarge (2,048 for 8).
# https://aws.amazon.com/ec2/instance-types/, https://cloud.google.com/compute/docs/gpus, https://lambda.ai/instances
# Of consumer cards it is judgement: 16 in a laptop, 32 beside up to 16 GB of a desktop's card, 64 beside more.
SHEETS: dict[str, Sheet] = {
    "t4": Sheet(
        "Tesla T4", 14.6, 12.7, (7, 5), 65, 8.1, 0, 0, 130, 0.25, 320, "pcie3", "pcie3", 0.35,
        "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf",
    ),
    "v100": Sheet(
        "Tesla V100", 15.7, 61, (7, 0), 125, 15.7, 0, 0, 0, 7.8, 900, "pcie3", "nvlink2", 0.6,
        "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf",
    ),
    "v100-32": Sheet(
        "Tesla V100", 31.7, 96, (7, 0), 125, 15.7, 0, 0, 0, 7.8, 900, "pcie3", "nvlink2", 0.6,
        "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf",
    ),
    "rtx3050-laptop": Sheet(  # 2,048 cores at 1.5 GHz, in the middle of what laptops let it have (1.06 to 1.74 GHz); 12 Gbit/s memory
        "RTX 3050 Laptop", 3.8, 16, (8, 6), 12.2, 6.1, 6.1, 0, 49, 0.1, 192, "pcie4-x8", "pcie4-x8", 0.75,
        "https://www.nvidia.com/en-us/geforce/laptops/compare/30-series/",
    ),
    "rtx3060-12": Sheet(
        "RTX 3060", 11.7, 32, (8, 6), 25.4, 12.7, 12.7, 0, 102, 0.2, 360, "pcie4", "pcie4", 0.75, _AMPERE
    ),
    "rtx3090": Sheet("RTX 3090", 23.6, 64, (8, 6), 71, 35.6, 35.6, 0, 284, 0.56, 936, "pcie4", "pcie4", 0.75, _AMPERE),
    "rtx4060ti-16": Sheet(
        "RTX 4060 Ti", 15.6, 32, (8, 9), 44.1, 22.1, 22.1, 88.2, 176, 0.34, 288, "pcie4-x8", "pcie4-x8", 0.75, _ADA
    ),
    "rtx4080": Sheet(
        "RTX 4080", 15.6, 32, (8, 9), 97.5, 48.7, 48.7, 195, 390, 0.76, 717, "pcie4", "pcie4", 0.75, _ADA
    ),
    "rtx4090": Sheet(
        "RTX 4090", 23.5, 64, (8, 9), 165.2, 82.6, 82.6, 330.3, 660.6, 1.29, 1008, "pcie4", "pcie4", 0.75, _ADA
    ),
    "rtx5090": Sheet(
        "RTX 5090", 31.3, 64, (12, 0), 209.5, 104.8, 104.8, 419, 838, 1.64, 1792, "pcie5", "pcie5", 0.7, _BLACKWELL
    ),
    "a10": Sheet(
        "A10", 22.0, 200, (8, 6), 125, 31.2, 62.5, 0, 250, 0.49, 600, "pcie4", "pcie4", 0.5,
        "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a10/pdf/a10-datasheet.pdf",
    ),
    "a10g": Sheet(
        "A10G", 22.0, 64, (8, 6), 70, 31.5, 35, 0, 140, 0.49, 600, "pcie4", "pcie4", 0.7,
        "https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf",
    ),
    "l4": Sheet(
        "L4", 22.0, 53, (8, 9), 121, 30.3, 60, 242, 242, 0.47, 300, "pcie4", "pcie4", 0.45,
        "https://www.nvidia.com/en-us/data-center/l4/",
    ),
    "l40s": Sheet(
        "L40S", 44.4, 64, (8, 9), 362, 91.6, 183, 733, 733, 1.43, 864, "pcie4", "pcie4", 0.6,
        "https://www.nvidia.com/en-us/data-center/l40s/",
    ),
    "a100-40": Sheet("A100", 39.4, 85, (8, 0), 312, 19.5, 156, 0, 624, 9.7, 1555, "pcie4", "nvlink3", 0.75, _A100),
    "a100-80": Sheet("A100", 79.1, 170, (8, 0), 312, 19.5, 156, 0, 624, 9.7, 2039, "pcie4", "nvlink3", 0.75, _A100),
    "h100": Sheet(
        "H100", 79.1, 234, (9, 0), 989, 67, 495, 1979, 1979, 34, 3350, "pcie5", "nvlink4", 0.65,
        "https://www.nvidia.com/en-us/data-center/h100/",
    ),
    "h100-pcie": Sheet(
        "H100 PCIe", 79.1, 200, (9, 0), 756, 51, 378, 1513, 1513, 26, 2000, "pcie5", "pcie5", 0.6,
        "https://www.nvidia.com/content/dam/en-zz/Solutions/gtcs22/data-center/h100/PB-11133-001_v01.pdf",
    ),
    "h200": Sheet(
        "H200", 139.7, 256, (9, 0), 989, 67, 495, 1979, 1979, 34, 4800, "pcie5", "nvlink4", 0.65,
        "https://www.nvidia.com/en-us/data-center/h200/",
    ),
    "b200": Sheet(
        "B200", 178.0, 256, (10, 0), 2250, 75, 1100, 4500, 4500, 37, 7700, "pcie5", "nvlink5", 0.6,
        "https://www.nvidia.com/en-us/data-center/dgx-b200/",
    ),
}  # fmt: skip

LINKS: dict[str, tuple[float, float]] = {
    # GB/s that large transfers reach in one direction, microseconds before the first byte
    "pcie3": (12, 5),
    "pcie4-x8": (12.5, 5),
    "pcie4": (25, 5),
    "pcie5": (50, 5),
    "nvlink2": (120, 3),  # of 150
    "nvlink3": (240, 3),  # of 300
    "nvlink4": (360, 3),  # of 450
    "nvlink5": (720, 3),  # of 900
    "ethernet-10": (1.1, 50),
    "ethernet-25": (2.8, 50),
    "ethernet-100": (11, 30),
    "infiniband-hdr": (23, 3),  # 200 Gbit/s
    "infiniband-ndr": (46, 3),  # 400 Gbit/s
    "memory": (10, 0),  # between processes of one host
}


def check_device(name: str) -> None:
    """Refuse a device that is neither in the catalogue nor meant to be here; to ask loads no heavy library.

    Raises:
        SettingError
    """
    if name.lower() not in (*HERE, *SHEETS):
        raise SettingError(
            "device",
            f"there is no '{name}' in the catalogue",
            nearest(name.lower(), ["cpu", "cuda", *SHEETS]),
        )
