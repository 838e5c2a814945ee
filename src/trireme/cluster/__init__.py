"""What a machine offers: accelerators with their published peaks, each figure with its source."""

from trireme.cluster.catalog import CATALOG, DeviceSpec
from trireme.cluster.lookup import find_device, near_devices

__all__ = ["CATALOG", "DeviceSpec", "find_device", "near_devices"]
