#include "tools/page.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "core/utf8.h"

enum { TEXT = 1200 };

Status page_put(FileWriter *f, const char *text) {
    return file_writer_write(f, text, strlen(text));
}

Status page_format(FileWriter *f, const char *format, ...) {
    char text[TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return page_put(f, text);
}

Status page_escaped(FileWriter *f, const char *text) {
    char shown[8];
    for (const char *p = text; *p;) {
        const size_t n = utf8_length((const unsigned char *)p, strnlen(p, 4));
        char one[8] = "";
        memcpy(one, p, n > 0 ? n : 1);
        p += n > 0 ? n : 1;
        const char *as = *one == '<' ? "&lt;" : *one == '>' ? "&gt;" : *one == '&' ? "&amp;" : NULL;
        if (*one == '"') as = "&quot;";
        if (!as) as = *one == '\n' ? one : text_printable(one, shown, sizeof shown);
        TRY(page_put(f, as));
    }
    return STATUS_OK;
}

static Status put_base64(FileWriter *f, const unsigned char *bytes, size_t size) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char text[4096];
    size_t used = 0;
    for (size_t i = 0; i < size; i += 3) {
        const size_t left = size - i;
        const unsigned a = bytes[i], b = left > 1 ? bytes[i + 1] : 0,
                       c = left > 2 ? bytes[i + 2] : 0;
        const unsigned word = a << 16 | b << 8 | c;
        text[used++] = digits[word >> 18];
        text[used++] = digits[word >> 12 & 63];
        text[used++] = left > 1 ? digits[word >> 6 & 63] : '=';
        text[used++] = left > 2 ? digits[word & 63] : '=';
        if (used + 4 <= sizeof text && left > 3) continue;
        TRY(file_writer_write(f, text, used));
        used = 0;
    }
    return STATUS_OK;
}

Status page_image(FileWriter *f, const char *type, const char *alt, const void *bytes,
                  size_t size) {
    TRY(page_format(f, "<img alt=\"%s\" src=\"data:image/%s;base64,", alt, type));
    TRY(put_base64(f, bytes, size));
    return page_put(f, "\">");
}

Status page_picture(FileWriter *f, const char *alt, const Image *image) {
    void *bytes;
    size_t size;
    TRY(image_encode_png(image, &bytes, &size));
    Status s = page_image(f, "png", alt, bytes, size);
    mem_free(bytes);
    return s;
}

/* ---- the page ---- */

static const char head[] =
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width\">\n<style>\n"
    ":root{color-scheme:light dark}\n"
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem}\n"
    "h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}\n"
    "table{border-collapse:collapse}th,td{padding:.3rem .6rem;text-align:right}\n"
    "th{border-bottom:1px solid #8888}td:first-child,th:first-child{text-align:left}\n"
    "figure{display:inline-block;margin:0 .5rem .5rem 0}figcaption{font-size:.8rem;opacity:.7}\n"
    "img{display:block;max-width:100%;image-rendering:auto}\n"
    "</style>\n<title>";

static Status begin(FileWriter *f, const char *title) {
    TRY(page_put(f, head));
    TRY(page_escaped(f, title));
    TRY(page_put(f, "</title></head><body>\n<h1>"));
    TRY(page_escaped(f, title));
    return page_put(f, "</h1>\n");
}

Status page_open(const char *path, const char *title, FileWriter **out) {
    FileWriter *f;
    TRY(file_writer_open(path, &f));
    const Status s = begin(f, title);
    if (s == STATUS_OK)
        *out = f;
    else
        file_writer_abort(f);
    return s;
}

Status page_close(FileWriter *f, Status s) {
    if (s == STATUS_OK) s = page_put(f, "</body></html>\n");
    if (s == STATUS_OK) return file_writer_commit(f);
    file_writer_abort(f);
    return s;
}
