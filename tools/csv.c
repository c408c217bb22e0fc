#include "tools/csv.h"

#include <string.h>

Status csv_field(CsvPut put, void *user, const char *text) {
    if (!strpbrk(text, ",\"\r\n")) return put(user, text, strlen(text));
    TRY(put(user, "\"", 1));
    for (const char *at = text; *at;) {
        const size_t plain = strcspn(at, "\"");
        TRY(put(user, at, plain));
        at += plain;
        if (*at != '"') break;
        TRY(put(user, "\"\"", 2));
        at++;
    }
    return put(user, "\"", 1);
}

static Status put_file(void *user, const void *bytes, size_t size) {
    return size > 0 ? file_writer_write(user, bytes, size) : STATUS_OK;
}

Status csv_field_write(FileWriter *file, const char *text) {
    return csv_field(put_file, file, text);
}
