-- incarnation(boot): the server's incarnation
return incarnation()
