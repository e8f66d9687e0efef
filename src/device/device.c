/* What is the same on every device. */
#include "device/device.h"

tsh_device_kind tsh_device_get_kind(const tsh_device *device) {
    return device->ops->kind;
}

tsh_device_stats tsh_device_get_stats(const tsh_device *device) {
    return device->stats;
}

void tsh_device_reset_peak(tsh_device *device) {
    device->stats.bytes_peak = device->stats.bytes_in_use;
}

char *tsh_device_describe(const tsh_device *device, char *text, size_t size) {
    device->ops->describe(device, text, size);
    return text;
}
