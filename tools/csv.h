/* Fields of CSV files as RFC 4180 has them: in quotes where they hold a comma, a quote or a line
 * end; all other bytes stay as they are. */
#ifndef TTV_TOOLS_CSV_H
#define TTV_TOOLS_CSV_H

#include "core/file.h"

typedef Status (*CsvPut)(void *user, const void *bytes, size_t size);
Status csv_field(CsvPut put, void *user, const char *text);
/* Into a file. */
Status csv_field_write(FileWriter *file, const char *text);

#endif
