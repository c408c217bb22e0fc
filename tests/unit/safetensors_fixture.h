/* Building safetensors images by hand. */
#ifndef TTV_TESTS_SAFETENSORS_FIXTURE_H
#define TTV_TESTS_SAFETENSORS_FIXTURE_H

#include "core_fixture.h"

#include "core/safetensors.h"

typedef struct Image {
    unsigned char *data;
    size_t size;
} Image;

/* Length prefix, header text, `data_bytes` bytes 0, 1, 2, ... To be freed with free(). */
__attribute__((unused)) static Image image_of(const char *header, size_t data_bytes) {
    uint64_t length = strlen(header);
    Image image = {malloc(8 + length + data_bytes + 1), 8 + length + data_bytes};
    assert_non_null(image.data);
    memcpy(image.data, &length, 8);
    memcpy(image.data + 8, header, length);
    for (size_t i = 0; i < data_bytes; i++) image.data[8 + length + i] = (unsigned char)i;
    return image;
}

__attribute__((unused)) static const char *put_image(const char *name, const char *header,
                                                     size_t data_bytes) {
    Image image = image_of(header, data_bytes);
    const char *path = put_file(name, image.data, image.size);
    free(image.data);
    return path;
}

#endif
