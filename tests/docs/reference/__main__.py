from tests.docs.reference.man_pages import write_man_pages
from tests.docs.reference.pages import write_pages

write_pages()
write_man_pages()
