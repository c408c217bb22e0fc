#include <stddef.h>
#include <string.h>

#include "kernels/slots.h"

typedef struct Slot {
    const char *name;
    size_t offset;
} Slot;

#define SLOT(slot) {#slot, offsetof(Kernels, slot)},
static const Slot slots[] = {KERNEL_SLOTS(SLOT)};
#define SLOT_COUNT (sizeof slots / sizeof slots[0])

_Static_assert(sizeof(Kernels) == sizeof(char *) + SLOT_COUNT * sizeof(void (*)(void)),
               "KERNEL_SLOTS does not list every slot of struct Kernels");

int kernels_slot_count(void) {
    return (int)SLOT_COUNT;
}

const char *kernels_slot_name(int i) {
    return i >= 0 && i < (int)SLOT_COUNT ? slots[i].name : NULL;
}

const void *kernels_slot(const Kernels *k, int i) {
    const void *slot = NULL;
    if (k && i >= 0 && i < (int)SLOT_COUNT)
        memcpy(&slot, (const char *)k + slots[i].offset, sizeof slot);
    return slot;
}
