/* HTML pages of one file: pictures are embedded, nothing is fetched, names cannot become markup. */
#ifndef TTV_TOOLS_PAGE_H
#define TTV_TOOLS_PAGE_H

#include "core/file.h"
#include "datasets/image.h"

/* A page with that title (escaped), up to and with its heading. */
Status page_open(const char *path, const char *title, FileWriter **out);
/* Ends the page, or drops it when something went wrong with it; the first failure. */
Status page_close(FileWriter *f, Status s);

Status page_put(FileWriter *f, const char *markup);
/* At most some hundred characters; nothing is escaped. */
Status page_format(FileWriter *f, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Text of any length; line ends stay. */
Status page_escaped(FileWriter *f, const char *text);
/* The bytes of a picture of `type`: "png", "apng", "gif". `alt` is not escaped. */
Status page_image(FileWriter *f, const char *type, const char *alt, const void *bytes, size_t size);
Status page_picture(FileWriter *f, const char *alt, const Image *image);

#endif
